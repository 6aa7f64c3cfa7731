"""Two processes on the CPU do what one does."""

import csv
import json
import subprocess
import sys

import lightning as L
import numpy as np
import pandas as pd
import pytest
from identiformer.train import evaluate, train
from identiformer.train.errors import UserError
from identiformer.train.processes import together
from identiformer.train.report.runs import read_runs
from identiformer.train.sweep_folder import read_sweep
from lightning.pytorch.strategies import ModelParallelStrategy
from safetensors.torch import load_file

TWO = ("trainer=ddp", "trainer.devices=2", "data.batch_size=4")
NO_DROPOUT = ("model.dropout=0.0", "model.embedding_dropout=0.0")


def _run(*command, cwd=None):
    """A command line in a process of its own, which starts another one."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def options(reviews, small):
    """Training on 72 rows, validation and test on 9, in batches of 8: the last ones hold one row."""
    return [
        *small,
        *NO_DROPOUT,
        "trainer.log_every_n_steps=1",
        "class_weight=balanced",
        "callbacks.monitor.attribution=true",
    ]


@pytest.fixture(scope="module")
def columns(reviews):
    return {"data": str(reviews), "text": ["review"], "label": "verdict"}


@pytest.fixture(scope="module")
def typed(columns):
    return ["--data", columns["data"], "--text", "review", "--label", "verdict"]


@pytest.fixture(scope="module")
def runs(options, columns, typed, tmp_path_factory):
    """The same run by one process and by two."""
    folder = tmp_path_factory.mktemp("runs")
    one = train([*options, f"runs={folder}", "name=one"], **columns).folder
    _run("-m", "identiformer", "train", *typed, *options, *TWO, f"runs={folder}", "name=two")
    (two,) = (folder / "two").iterdir()
    return one, two


def test_two_processes_train_the_weights_of_one(runs):
    one, two = (load_file(folder / "model" / "model.safetensors") for folder in runs)
    assert one.keys() == two.keys()
    for name in one:
        if name.endswith("key.bias"):
            continue  # softmax is blind to it: its gradient is rounding alone, of which Adam makes whole steps
        np.testing.assert_allclose(one[name], two[name], atol=1e-5, err_msg=name)


def test_two_processes_log_what_one_logs(runs):
    for name, read in (
        ("metrics.csv", pd.read_csv),
        ("identifiability.jsonl", lambda path: pd.read_json(path, lines=True)),
    ):
        one, two = (read(folder / name) for folder in runs)
        assert list(one) == list(two)
        np.testing.assert_allclose(one, two, atol=1e-5)


def test_two_processes_test_every_row_once(runs):
    one, two = (pd.read_parquet(folder / "predictions.parquet") for folder in runs)
    for name in ("row", "label", "predicted"):
        assert one[name].equals(two[name])
    np.testing.assert_allclose(one.filter(like="probability"), two.filter(like="probability"), atol=1e-5)
    first, second = (json.loads((folder / "summary.json").read_text()) for folder in runs)
    assert first.keys() == second.keys()
    assert first["test/right"] == second["test/right"]


@pytest.fixture(scope="module")
def labelled(reviews, tmp_path_factory):
    """Files of 1, 7 and 64 rows."""
    header, *rows = csv.reader(reviews.open(encoding="utf-8"))
    folder = tmp_path_factory.mktemp("labelled")
    for number in (1, 7, 64):
        with (folder / f"{number}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows[:number]])
    return folder


SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from identiformer.train import evaluate
from identiformer.train.classifier import TextClassifier
from identiformer.train.cli import main

given = json.loads(Path("given.json").read_text())
rank, (first, *_) = os.environ["RANK"], given["files"]

found = [evaluate(given["model"], file, devices=2, texts_measured=5) for file in given["files"]]
Path(f"found.{rank}").write_text(json.dumps(found))
assert main(["evaluate", given["model"], "--data", first, "--devices=2"]) == 0

assert main([*given["train"], "name=straight"]) == 0
step, calls = TextClassifier.training_step, []

def stop(self, batch, number):
    calls.append(1)
    if len(calls) == 14 and rank == "1":  # in the second epoch
        os.kill(os.getpid(), signal.SIGINT)
    return step(self, batch, number)

TextClassifier.training_step = stop
assert main([*given["train"], "name=stopped"]) == 130
(folder,) = Path("stopped").iterdir()
assert main(["train", "--resume", str(folder)]) == 0
"""


@pytest.fixture(scope="module")
def torchrun(finished, labelled, options, typed, tmp_path_factory):
    """What two processes that torchrun starts leave in a folder, and what they print, when all goes well."""
    folder = tmp_path_factory.mktemp("torchrun")
    files = [str(labelled / f"{number}.csv") for number in (1, 7, 64)]
    command = ["train", *typed, *options, *TWO, "runs=."]
    given = {"model": str(finished.folder), "files": files, "train": command}
    (folder / "given.json").write_text(json.dumps(given))
    (folder / "script.py").write_text(SCRIPT)
    done = _run("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "script.py", cwd=folder)
    return folder, files, done


def test_two_processes_evaluate_as_one_does(finished, torchrun):
    """Also where there are fewer rows than processes."""
    folder, files, done = torchrun
    expected = [evaluate(str(finished.folder), file, texts_measured=5) for file in files]
    for rank in (0, 1):
        for one, two in zip(expected, json.loads((folder / f"found.{rank}").read_text()), strict=True):
            for name, value in one.items():
                if isinstance(value, float) and "identifiable" not in name and "nullity" not in name:
                    assert two[name] == pytest.approx(value, abs=1e-6)
                else:
                    assert two[name] == value
    assert done.stdout.count("macro F1") == 1  # only the first process prints


def test_two_processes_go_on_with_a_run_that_one_of_them_was_told_to_stop(torchrun):
    folder, _, done = torchrun
    straight, stopped = (next((folder / name).iterdir()) for name in ("straight", "stopped"))
    one, two = (load_file(run / "model" / "model.safetensors") for run in (straight, stopped))
    assert all((one[name] == two[name]).all() for name in one)
    assert (straight / "metrics.csv").read_bytes() == (stopped / "metrics.csv").read_bytes()
    assert done.stderr.count("To go on: ") == 1  # only the first process says so


def test_the_points_of_a_sweep_are_each_run_by_two_processes(options, typed, tmp_path):
    done = _run(
        "-m",
        "identiformer",
        "train",
        "--multirun",
        "seed=0,1",
        *typed,
        *options,
        *TWO,
        f"runs={tmp_path}",
        "trainer.max_epochs=1",
    )
    assert done.stdout.count("Run folder") == 0  # quiet
    (folder,) = (tmp_path / "default").iterdir()
    assert [run.summary["seed"] for run in read_runs([folder])] == [0, 1]
    assert len(list(folder.glob("standard-*"))) == len(read_sweep(folder).runs) == 2


def test_a_strategy_that_may_split_weights_is_refused():
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy=ModelParallelStrategy(), logger=False)
    refused = pytest.raises(UserError, match="ModelParallelStrategy, which may split the weights: use trainer=ddp")
    with refused, together(trainer):
        pass
