import json

import numpy as np
import pytest
from identiformer.train import compare
from identiformer.train.errors import UserError
from identiformer.train.statistics import difference_interval, equivalence_interval, mcnemar

RIGHT = np.random.default_rng(0).random(200) < 0.8


def test_each_group_is_tested_against_the_baseline_with_all_its_seeds(make_run):
    models = np.random.default_rng(1).random((5, 200)) < np.where(RIGHT, 0.9, 0.2)
    presets = ["identifiable"] * 2 + ["standard"] * 3
    folders = [make_run(preset, seed, right) for seed, (preset, right) in enumerate(zip(presets, models, strict=True))]
    found = compare(folders)
    (test,) = found.tests
    assert (found.baseline, test.name) == ("standard", "identifiable")
    first, second = models[2:], models[:2]
    assert test.difference == pytest.approx(second.mean() - first.mean())
    assert test.interval == difference_interval(first, second)
    assert test.mcnemar == mcnemar(first, second)
    assert test.equivalence_interval == equivalence_interval(first, second)


def test_equally_performant_is_what_lies_within_the_margin(make_run):
    right = np.arange(2000) % 5 != 0
    other = right.copy()
    other[[0, 5, 1]] = ~other[[0, 5, 1]]
    folders = [make_run("standard", right=right), make_run("identifiable", right=other)]
    upper = compare(folders).tests[0].equivalence_interval[1]
    assert 0 < upper < 0.01
    assert [compare(folders, margin=upper + step).tests[0].equivalent for step in (-1e-9, 1e-9)] == [False, True]


@pytest.mark.parametrize(
    "other",
    [
        {"data_hash": "other"},
        {"rows": np.arange(200) + 1},
        {"labels": np.where(np.arange(200) % 3, "good", "bad")},
        {"right": RIGHT[:-1]},
    ],
)
def test_runs_that_were_tested_on_different_texts_are_refused(make_run, other):
    first, second = make_run(right=RIGHT), make_run("identifiable", **{"right": RIGHT} | other)
    with pytest.raises(UserError, match="tested on different texts") as error:
        compare([first, second])
    assert str(first) in str(error.value)
    assert str(second) in str(error.value)


def test_runs_on_other_training_data_but_the_same_test_are_compared(make_run):
    folders = [make_run(), make_run()]
    summary = json.loads((folders[1] / "summary.json").read_text())
    (folders[1] / "summary.json").write_text(json.dumps(summary | {"data_hash": "more rows"}))
    found = compare(folders)
    assert [group.name for group in found.groups] == ["standard data_hash=d", "standard data_hash=more rows"]
    assert found.tests[0].name == "standard data_hash=more rows"


def test_without_a_test_split_figures_are_compared_and_nothing_is_tested(make_run):
    folders = [make_run("identifiable"), make_run("standard")]
    (folders[0] / "predictions.parquet").unlink()
    assert compare(folders).tests == []


def test_the_baseline_is_the_standard_layer_or_the_first_or_what_is_asked_for(make_run):
    folders = [make_run("small_key"), make_run("identifiable"), make_run("standard")]
    assert compare(folders).baseline == "standard"
    assert compare(folders[:2]).baseline == "small_key"
    assert compare(folders, baseline="identifiable").baseline == "identifiable"
    with pytest.raises(UserError, match=r"no 'identifable' to compare with; .* Did you mean 'identifiable'"):
        compare(folders, baseline="identifable")


@pytest.mark.parametrize("margin", [0, 1, -0.02, float("nan"), 2])
def test_a_margin_that_is_none_is_refused(make_run, margin):
    with pytest.raises(UserError, match=r"The margin is .*: give a share"):
        compare([make_run()], margin=margin)


def test_everything_is_there_as_plain_types(make_run):
    found = compare([make_run(seed=0), make_run(seed=1), make_run("identifiable")])
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [len(group["runs"]) for group in content["groups"]] == [2, 1]
    assert content["groups"][0]["test/accuracy_std"] == 0
    assert "test/accuracy_std" not in content["groups"][1]
    assert content["tests"][0]["name"] == "identifiable"
    assert found.table["name"].tolist() == ["standard", "identifiable"]
