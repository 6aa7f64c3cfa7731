"""Exit codes of real processes: a dozen command lines for each, one after the other in one process.

Interruptions fall into training, at moments that differ: one that falls into a library's code may be lost there.
"""

import csv
import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, signal, sys, threading, time
from pathlib import Path
from identiformer.train.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)

def trained():
    return len(list(Path("runs").glob("default/*/checkpoints/last.ckpt")))

def interrupt(delay, before):
    while trained() == before:
        time.sleep(0.01)
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGINT)

for argv, delay in json.loads(sys.stdin.read()):
    if delay:
        threading.Thread(target=interrupt, args=(delay, trained()), daemon=True).start()
    code = main(argv)
    for stream in (sys.stdout, sys.stderr):
        print(f"{code}\\x1e", end="", file=stream, flush=True)
"""
SIZES = ["model.d_model=24", "model.num_heads=3", "data.max_length=12", "trainer.accelerator=cpu", "--quiet"]


@pytest.fixture(scope="module")
def ended(finished, reviews, tmp_path_factory):
    """Every command line with its stdout and stderr, each ending in its code: a dozen each of 0, 2, 1 and 130."""
    folder, model, data = tmp_path_factory.mktemp("exits"), str(finished.folder), str(reviews)
    train = ["train", "--data", data, "--text", "review", "--label", "verdict", *SIZES]
    wrong = ["seed=-1", "optimizer.lr=nan", "data.batch_size=0", "model.num_heads=0", "trainer.max_epochs=-1"]
    wrong += ["data.encoding=x", "model.d_model=7", "class_weight=x", "model.dropout=2", "data.workers=-1"]
    commands = ("train", "evaluate", "predict", "analyze", "data", "compare", "report")
    lines = [
        *([command, "--help"] for command in commands),
        ["predict", model, "fine"],
        ["predict", model, "--data", data, "--output", "x.csv"],
        ["evaluate", model, "--data", data],
        ["data", data, "--text", "review", "--label", "verdict"],
        ["analyze", model, "fine"],
        *([*train, setting] for setting in wrong[:6]),
        *([command, "missing"] for command in ("data", "compare")),
        ["predict", "missing", "fine"],
        ["predict", model, "--data", "missing.csv"],
        ["report", model, "-o", "no/x.html"],
        ["analyze", model, "a", "--token", "99"],
        *([*train, "--multirun", setting, f"runs=runs{number}"] for number, setting in enumerate(wrong)),
        ["train", "--multirun", "--data", "missing.csv", *SIZES, "seed=1,2"],
        ["train", "--multirun", "--data", data, *SIZES, "seed=1,2"],
    ]
    endless = [*train, "trainer.max_epochs=1000000", "callbacks.monitor=null"]
    jobs = [(line, 0) for line in lines] + [(endless, 0.02 * number) for number in range(1, 13)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps(jobs), cwd=folder, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    streams = [stream.split("\x1e")[:-1] for stream in (done.stdout, done.stderr)]
    return list(zip(jobs, *streams, strict=True))


@pytest.mark.parametrize(("code", "first"), [(0, 0), (2, 12), (1, 24), (130, 36)])
def test_a_dozen_command_lines_end_with_their_code(ended, code, first):
    assert len(ended) == 48
    for job, out, err in ended[first : first + 12]:
        assert out.endswith(str(code)), (job, err)
        said = err.removesuffix(str(code))
        assert "Traceback" not in said, (job, said)
        if code == 2:
            assert said.startswith("Error: "), (job, said)
            assert said.count("\n") == 1, (job, said)
            assert out == "2", (job, out)


def test_closed_streams_and_a_plain_locale_do_no_harm(finished, tmp_path):
    with (tmp_path / "é a.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["review"], ["fíne"], ["dull"]])
    command = f'"{sys.executable}" -m identiformer predict "{finished.folder}" --data "é a.csv" <&- | head -c 0'
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
