import json
import re
from pathlib import Path

import identiformer
import pytest
from identiformer.train import evaluate
from safetensors import safe_open

ROOT = Path(identiformer.__file__).parent
FOLDERS = sorted(path.parent for path in (ROOT / "checkpoints").glob("*/config.json"))
TEST = ROOT / "train" / "data" / "movie_snippets" / "test.parquet"
named = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)

pytestmark = pytest.mark.skipif(not FOLDERS, reason="needs a checkout: checkpoints are not installed")


def test_the_three_are_there():
    presets = ("identifiable", "shared_value", "standard")
    assert [folder.name for folder in FOLDERS] == [f"movie-snippets-{preset}" for preset in presets]


@named
def test_a_folder_is_small_and_holds_nothing_pickled(folder):
    files = list(folder.iterdir())
    assert sum(file.stat().st_size for file in files) <= 6_000_000
    assert {file.suffix for file in files} == {".json", ".md", ".safetensors"}
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert weights.keys()


@named
def test_a_checkpoint_counts_the_right_answers_of_its_card(folder):
    card = (folder / "README.md").read_text()
    right, rows = map(int, re.search(r"([\d,]+) of ([\d,]+) test texts right", card.replace(",", "")).groups())
    scores = evaluate(str(folder), str(TEST))
    assert (scores["right"], scores["rows"]) == (right, rows)
    claimed = re.search(r"\| accuracy \| [\d.]+ \| ([\d.]+) \|", card)[1]
    assert f"{scores['accuracy']:.4f}" == claimed


@named
def test_a_card_names_command_and_meaning(folder):
    card = (folder / "README.md").read_text()
    preset = json.loads((folder / "identiformer.json").read_text())["preset"]
    assert f"identiformer train layer={preset}" in card
    assert "What identifiable means" in card
    assert "torch" in card
