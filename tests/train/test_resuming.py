import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
from pathlib import Path

import forked
import pandas as pd
import pytest
import torch
from identiformer.train import train
from identiformer.train.checkpoints import WholeCheckpointIO
from identiformer.train.classifier import TextClassifier
from identiformer.train.cli import main
from identiformer.train.disk import lock
from identiformer.train.errors import UserError

EVERY_3_STEPS = "callbacks.last.every_n_train_steps=3"
RATES = "+callbacks.rates._target_=lightning.pytorch.callbacks.LearningRateMonitor"  # logged as lr-AdamW


@pytest.fixture(scope="module")
def command(reviews, small):
    """A training of two epochs of ten batches, but for its folder."""
    columns = ["--data", str(reviews), "--text", "review", "--label", "verdict"]
    return ["train", *columns, *small, "trainer.log_every_n_steps=1", RATES]


@pytest.fixture(scope="module")
def straight(command, tmp_path_factory):
    """The folder of that training when nothing stops it."""
    runs = tmp_path_factory.mktemp("straight")
    assert main([*command, EVERY_3_STEPS, f"runs={runs}"]) == 0
    return _run(runs)


@pytest.fixture
def stopped(straight, tmp_path):
    """A copy of that folder as if the run was stopped before its last figures were written."""
    folder = shutil.copytree(straight, tmp_path / "run")
    (folder / "summary.json").unlink()
    return folder


def _run(runs: Path) -> Path:
    (folder,) = (runs / "default").iterdir()
    return folder


def _process(argv, prepare, errors=os.devnull) -> int:
    """Exit code of a process of its own that prepares and runs the command."""
    process = forked.start(argv, errors, prepare)
    process.join(120)
    assert process.exitcode is not None
    return process.exitcode


def _at(owner, name, number, act):
    """A preparation: act after a call of a function, by its number from 1."""

    def prepare():
        function, calls = getattr(owner, name), []

        def watched(*args, **kwargs):
            result = function(*args, **kwargs)
            calls.append(1)
            if len(calls) == number:
                act()
            return result

        setattr(owner, name, watched)

    return prepare


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)


def _interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def _equal(resumed: Path, straight: Path) -> None:
    """Two runs are the same, bit by bit: weights, logs, learning rates, predictions, scores."""
    for name in ("best", "last"):
        ours, theirs = (torch.load(run / f"checkpoints/{name}.ckpt", weights_only=True) for run in (resumed, straight))
        assert ours["state_dict"].keys() == theirs["state_dict"].keys()
        assert all(torch.equal(ours["state_dict"][key], tensor) for key, tensor in theirs["state_dict"].items())
    assert pd.read_csv(straight / "metrics.csv")["lr-AdamW"].notna().sum() > 1
    for name in ("metrics.csv", "identifiability.jsonl", "predictions.parquet", "split.parquet"):
        assert (resumed / name).read_bytes() == (straight / name).read_bytes(), name
    summaries = [json.loads((run / "summary.json").read_text()) for run in (resumed, straight)]
    assert all(summary.pop("train_seconds") > 0 for summary in summaries)
    assert summaries[0] == summaries[1]
    assert sorted(path.name for path in resumed.rglob("*")) == sorted(path.name for path in straight.rglob("*"))


@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [
        (TextClassifier, "training_step", 1),  # nothing is saved yet
        (TextClassifier, "validation_step", 1),  # after the last batch of an epoch
        (torch, "save", 5),  # the best is saved, the last half so
        (TextClassifier, "training_step", 17),
        (TextClassifier, "test_step", 1),  # all is trained
    ],
)
def test_a_killed_run_goes_on_as_if_it_never_was(owner, name, number, command, straight, tmp_path):
    argv = [*command, EVERY_3_STEPS, f"runs={tmp_path}"]
    assert _process(argv, _at(owner, name, number, _kill)) == -signal.SIGKILL
    assert main(["train", "--resume", str(_run(tmp_path)), "--quiet"]) == 0
    _equal(_run(tmp_path), straight)


def test_it_goes_on_with_workers_from_python_and_where_it_was_moved_to(command, straight, tmp_path):
    argv = [*command, EVERY_3_STEPS, "data.workers=2", f"runs={tmp_path}"]
    assert _process(argv, _at(TextClassifier, "training_step", 15, _kill)) == -signal.SIGKILL
    folder = _run(tmp_path).rename(tmp_path / "moved, = ü")
    assert train(["quiet=true"], resume=str(folder)).folder == folder
    _equal(folder, straight)


def test_it_goes_on_between_validations_and_gathered_gradients(command, tmp_path):
    options = ["+trainer.val_check_interval=0.5", "+trainer.accumulate_grad_batches=2"]  # the latter within the former
    argv = [*command, EVERY_3_STEPS, *options]
    assert main([*argv, f"runs={tmp_path / 'straight'}"]) == 0
    assert _process([*argv, f"runs={tmp_path}"], _at(TextClassifier, "training_step", 17, _kill)) == -signal.SIGKILL
    assert main(["train", "--resume", str(_run(tmp_path)), "--quiet"]) == 0
    _equal(_run(tmp_path), _run(tmp_path / "straight"))


@pytest.mark.parametrize("step", ["training_step", "validation_step"])
def test_an_interrupted_run_says_how_to_go_on_and_does(step, command, straight, tmp_path):
    argv = [*command, f"runs={tmp_path / 'my runs'}"]
    assert _process(argv, _at(TextClassifier, step, 1, _interrupt), tmp_path / "errors") == 130
    folder = _run(tmp_path / "my runs")
    said = f"Interrupted. To go on: identiformer train --resume '{folder}'\n"
    assert (tmp_path / "errors").read_text() == said
    steps = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["global_step"]
    assert steps == {"training_step": 1, "validation_step": 10}[step]
    assert main(["train", "--resume", str(folder), "--quiet"]) == 0
    _equal(folder, straight)


def test_a_second_interruption_acts_at_once(command, tmp_path):
    def twice():
        _interrupt()
        _interrupt()

    argv = [*command, f"runs={tmp_path}"]
    assert _process(argv, _at(TextClassifier, "training_step", 5, twice), tmp_path / "errors") == 130
    assert "--resume" in (tmp_path / "errors").read_text()
    assert not list((_run(tmp_path) / "checkpoints").glob("*.ckpt"))


@pytest.mark.parametrize("function", ["training_step", "test_step"])
def test_the_count_of_early_stopping_goes_on(function, command, tmp_path):
    options = ["callbacks=early_stopping", "callbacks.early_stopping.patience=2", "trainer.limit_train_batches=3"]
    argv = [*command, *options, "optimizer.lr=0.0", "trainer.max_epochs=30", f"runs={tmp_path}"]
    number = {"training_step": 8, "test_step": 1}[function]  # in the third epoch; after the last
    assert _process(argv, _at(TextClassifier, function, number, _kill)) == -signal.SIGKILL
    assert main(["train", "--resume", str(_run(tmp_path)), "--quiet"]) == 0
    lines = (_run(tmp_path) / "identifiability.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == sorted(json.loads(line)["epoch"] for line in lines)
    assert {json.loads(line)["epoch"] for line in lines} == {0, 1, 2}  # the first, and two that are no better


def test_diverging_training_ends_in_a_sentence_and_keeps_the_last_good_checkpoint(
    command, straight, tmp_path, monkeypatch, capsys
):
    step = TextClassifier.training_step
    fault = {14: torch.nan}
    monkeypatch.setattr(
        TextClassifier,
        "training_step",
        lambda self, batch, number: step(self, batch, number) * fault.get(self.global_step, 1),
    )
    assert main([*command, EVERY_3_STEPS, f"runs={tmp_path}"]) == 1
    folder = _run(tmp_path)
    assert capsys.readouterr().err == (
        "Error: Training diverged at step 14 of epoch 1: the loss is nan, at learning rate 0.00179; the last good "
        f"checkpoint is {folder / 'checkpoints/last.ckpt'}. Try a smaller optimizer.lr, a longer scheduler.warmup or a "
        "smaller trainer.gradient_clip_val.\n"
    )
    assert torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 12
    fault.clear()
    assert main(["train", "--resume", str(folder), "--quiet"]) == 0
    _equal(folder, straight)


def test_weights_that_are_not_finite_are_never_saved(command, tmp_path, capsys):
    argv = [*command, f"runs={tmp_path}", "optimizer.lr=1e38", "trainer.limit_train_batches=2"]
    assert main(argv) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "there was no checkpoint yet" in said
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of its own, of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk is refused")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_ends_in_a_sentence_and_keeps_the_last_checkpoint(
    command, straight, small_disk, monkeypatch, capsys
):
    step = TextClassifier.training_step

    def fill(self, batch, number):
        if self.global_step == 13:
            with (small_disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(bytes(1000)):
                    pass
        return step(self, batch, number)

    monkeypatch.setattr(TextClassifier, "training_step", fill)
    assert main([*command, EVERY_3_STEPS, f"runs={small_disk}"]) == 1
    folder = _run(small_disk)
    said = capsys.readouterr().err
    assert said.startswith(f"Error: The disk is full: {folder}/")
    assert said.endswith(f"could not be written. Make room, then go on: identiformer train --resume {folder}\n")
    assert said.count("\n") == 1
    assert torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 12
    (small_disk / "filler").unlink()
    monkeypatch.undo()
    assert main(["train", "--resume", str(folder), "--quiet"]) == 0
    _equal(folder, straight)


def test_seconds_of_training_add_up(stopped, straight):
    before = json.loads((straight / "summary.json").read_text())["train_seconds"]
    path = stopped / "checkpoints/last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    assert 0 < checkpoint["identiformer"]["seconds"] < before
    checkpoint["identiformer"]["seconds"] = 1000.0
    WholeCheckpointIO().save_checkpoint(checkpoint, path)
    assert 1000 < train(["quiet=true"], resume=str(stopped)).summary["train_seconds"] < 1000 + before


def test_what_cannot_go_on_is_refused(stopped, straight, tmp_path, capsys):
    def refusal(folder, *others):
        assert main(["train", "--resume", str(folder), *others]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    assert "is finished" in refusal(straight)
    assert "there is no config.yaml" in refusal(tmp_path)
    assert "trainer.max_epochs=9: a run goes on with its own config" in refusal(stopped, "trainer.max_epochs=9")
    assert "leave it out with --multirun" in refusal(stopped, "--multirun")
    (tmp_path / "sweep.json").write_text("{}")
    assert "is a sweep" in refusal(tmp_path)
    (tmp_path / "sweep.json").unlink()
    (tmp_path / "config.yaml").write_text("seed: [")
    assert "config.yaml cannot be read" in refusal(tmp_path)
    config = stopped / "config.yaml"
    config.write_text(config.read_text().replace("max_epochs: 2", "max_epochs: 9"))
    assert "config.yaml changed since its checkpoint of step 20" in refusal(stopped)
    (stopped / "checkpoints/last.ckpt").write_bytes(b"garbage")
    assert "last.ckpt is not a checkpoint of this program" in refusal(stopped)


def test_changed_data_are_refused(reviews, small, tmp_path, capsys):
    data = shutil.copy(reviews, tmp_path)
    argv = ["train", "--data", data, "--text", "review", "--label", "verdict", *small, f"runs={tmp_path}"]
    assert _process(argv, _at(TextClassifier, "test_step", 1, _kill)) == -signal.SIGKILL
    with open(data, "a") as file:
        file.write("90,A fine film.,good\n")
    assert main(["train", "--resume", str(_run(tmp_path))]) == 2
    assert "the data changed since its checkpoint of step 20" in capsys.readouterr().err


def test_a_run_has_one_process_at_a_time(stopped):
    def hold():
        held.append(lock(stopped / "checkpoints"))
        assert held[0]

    held = []
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()

    def other():
        hold()
        ready.set()
        done.wait(60)

    process = context.Process(target=other)
    process.start()
    ready.wait(60)
    with pytest.raises(UserError, match="is being trained by another process"):
        train(["quiet=true"], resume=str(stopped))
    done.set()
    process.join()
