import json
import multiprocessing
import os
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import forked
import pytest
from identiformer.train import sweep, sweeping
from identiformer.train.cli import main
from identiformer.train.composing import compose_config
from identiformer.train.errors import UserError
from identiformer.train.report.runs import read_runs
from omegaconf import OmegaConf


def _wait(folder: Path, pattern: str) -> None:
    end = time.monotonic() + 120
    while not list(folder.glob(pattern)):
        assert time.monotonic() < end, f"no {pattern} in {folder}"
        time.sleep(0.01)


@pytest.fixture
def grid(reviews, small, tmp_path):
    """The command of a sweep of four points."""
    columns = ["--data", str(reviews), "--text", "review", "--label", "verdict"]
    axes = ["layer=standard,shared_value", "seed=range(2)"]
    return ["train", "--multirun", *axes, *columns, *small, "trainer.max_epochs=1", f"runs={tmp_path}"]


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """Configs of points that were run; a run takes no time, wants the point's command line, and fails at seed 13."""
    configs = []

    def run(cfg):
        configs.append(cfg)
        assert compose_config(sys.argv[2:]).seed == cfg.seed  # as a process that Lightning starts reads it
        if cfg.seed == 13:
            raise RuntimeError("bad luck")
        return SimpleNamespace(folder=tmp_path / f"run-{len(configs)}")

    monkeypatch.setattr(sweeping, "run", run)
    return configs


def test_a_sweep_that_is_killed_in_its_second_point_goes_on(grid, tmp_path):
    process = forked.start(grid, tmp_path / "errors")
    _wait(tmp_path, "default/sweep-*/standard-seed1-*/config.yaml")
    process.kill()
    process.join()
    (folder,) = (tmp_path / "default").iterdir()
    (first,) = folder.glob("standard-seed0-*")
    finished = (first / "summary.json").stat().st_mtime_ns
    assert [path.name for path in (folder / "points").iterdir()] == ["0000.json"]
    assert main(grid) == 0
    runs = read_runs([folder])
    assert [(run.summary["preset"], run.summary["seed"]) for run in runs] == [
        (layer, seed) for layer in ("standard", "shared_value") for seed in (0, 1)
    ]
    assert list(folder.glob("standard-seed0-*")) == [first]
    assert len(list(folder.glob("standard-seed1-*"))) == 1  # what was stopped went on in its folder
    assert (first / "summary.json").stat().st_mtime_ns == finished
    assert list((tmp_path / "default").iterdir()) == [folder]


def test_two_sweeps_started_together_share_nothing(grid, tmp_path):
    processes = [forked.start([*grid, "layer=standard", "seed=0"], tmp_path / f"errors{number}") for number in range(2)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    folders = list((tmp_path / "default").iterdir())
    assert len(folders) == 2
    for folder in folders:
        assert json.loads((folder / "sweep.json").read_text())["finished"]
        assert [run.folder for run in read_runs([folder])] == list(folder.glob("standard-*"))


def test_an_interrupted_sweep_says_how_to_go_on(grid, tmp_path):
    process = forked.start([*grid, "layer=standard", "seed=0", "trainer.max_epochs=500"], tmp_path / "errors")
    _wait(tmp_path, "default/sweep-*/standard-seed0-*/identifiability.jsonl")
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode == 130
    assert (tmp_path / "errors").read_text().splitlines()[-1].startswith("Interrupted. The same command goes on")


def test_a_point_that_fails_is_recorded_and_the_sweep_goes_on(grid, tmp_path, capsys):
    argv = [*grid, "layer=standard", "seed=0", "model.d_key=0,4"]
    assert main(argv) == 1
    (folder,) = (tmp_path / "default").iterdir()
    failed, done = (json.loads(path.read_text()) for path in sorted((folder / "points").iterdir()))
    assert failed["error"] == "model: d_key is 0: it must be at least 1."
    assert (folder / done["run"] / "summary.json").exists()
    said = capsys.readouterr().err
    assert said.splitlines() == [
        f"Point 0: {failed['error']}",
        "1 of 2 points failed; the same command tries them again.",
    ]
    assert main(argv) == 1
    assert len(list(folder.glob("standard-*"))) == 1


def test_a_fault_in_a_point_does_not_stop_the_sweep(trained, tmp_path, capsys):
    points = sweep(["seed=13,1", f"runs={tmp_path}"]).points
    assert points[0]["error"] == "RuntimeError: bad luck"
    assert points[1]["run"] == "run-2"
    assert "Traceback" in capsys.readouterr().err


def test_a_point_that_cannot_be_is_refused_before_anything_runs(tmp_path, trained, capsys):
    assert main(["train", "--multirun", "layer=standard,identifable", f"runs={tmp_path}", "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "Did you mean 'identifiable'?" in said
    assert said.count("\n") == 1
    assert not trained
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("axis", ["name=a,b", "runs=a,b", "seed=interval(0,1)", "sed=0,1"])
def test_an_axis_that_cannot_be_is_one_sentence(axis, tmp_path, trained):
    with pytest.raises(UserError) as error:
        sweep([f"runs={tmp_path}", axis])
    assert "\n" not in str(error.value)
    assert not trained


def test_a_sweep_is_the_same_however_it_is_launched_and_whatever_it_says():
    def description(*overrides):
        return sweeping._description(sweeping._compose(overrides), overrides, [])

    first = description("seed=1,2")
    assert description("seed=1,2", "quiet=true", "hydra/launcher=basic") == first
    assert first not in (description("seed=2,1"), description("seed=1,2", "model.d_model=64"))
    assert description("experiment=layers") != description("experiment=length", "name=layers")


def test_only_an_unfinished_sweep_of_the_same_description_goes_on(tmp_path):
    with sweeping._claim(tmp_path, "first") as folder:
        pass
    with sweeping._claim(tmp_path, "second") as other:
        assert other != folder
    with sweeping._claim(tmp_path, "first") as again:
        assert again == folder
        (folder / "sweep.json").write_text(json.dumps({"description": "first", "finished": True}))
    with sweeping._claim(tmp_path, "first") as new:
        assert new not in (folder, other)


def test_a_sweep_that_another_process_holds_is_left_alone_until_it_dies(tmp_path):
    with sweeping._claim(tmp_path, "same") as held:
        pass
    context = multiprocessing.get_context("fork")
    ready = context.Event()

    def hold():
        with sweeping._claim(tmp_path, "same"):
            ready.set()
            time.sleep(60)

    process = context.Process(target=hold)
    process.start()
    assert ready.wait(60)
    with sweeping._claim(tmp_path, "same") as other:
        assert other != held
        shutil.rmtree(other)
    process.kill()
    process.join()
    with sweeping._claim(tmp_path, "same") as again:
        assert again == held


def test_what_people_type_by_an_option_is_one_value_exactly(trained, tmp_path):
    data, text, label = "a,${b}.csv", ["it's [1] = {é}", "choice(a,b)"], "${c},\\"
    sweep(["seed=0,1", f"runs={tmp_path}"], data=data, text=text, label=label)
    assert [cfg.seed for cfg in trained] == [0, 1]
    for cfg in trained:
        assert (cfg.data.train, list(cfg.data.text), cfg.data.label) == (data, text, label)


def test_a_points_command_alone_gives_its_config(trained, tmp_path, monkeypatch):
    monkeypatch.setattr("identiformer.train.api.run", trained.append)
    sweep(["layer=choice(small_key)", f"runs={tmp_path}"], data="a b.csv", label="it's")
    assert main(shlex.split(trained[0].command)[1:]) == 0
    assert trained[0].preset == "small_key"
    assert (trained[1].model, trained[1].data) == (trained[0].model, trained[0].data)


def test_the_file_of_an_experiment_holds_its_axes(trained, tmp_path):
    folder = sweep(["experiment=layers", "seed=0", f"runs={tmp_path}"]).folder
    assert folder.parent == tmp_path / "layers"
    assert [cfg.preset for cfg in trained] == ["standard", "small_key", "identifiable", "shared_value"]


@pytest.mark.parametrize("experiment", ["layers", "key_size", "length"])
def test_the_axes_of_an_experiment_are_options(experiment):
    cfg = sweeping._compose([f"experiment={experiment}"])
    assert cfg.name == experiment
    for key in cfg.hydra.sweeper.params:
        assert key in cfg.hydra.runtime.choices or OmegaConf.select(cfg, key) is not None


def test_another_launcher_runs_points_in_other_processes(grid, tmp_path, monkeypatch):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    from joblib.externals.loky import get_reusable_executor

    monkeypatch.setattr(sweeping, "run", None)  # in this one
    launcher = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "layer=standard", "seed=0"]
    assert main([*grid, *launcher]) == 0
    get_reusable_executor().shutdown()
    (folder,) = (tmp_path / "default").iterdir()
    assert [run.summary["seed"] for run in read_runs([folder])] == [0]
