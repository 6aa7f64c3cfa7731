import numpy as np
import pytest
from identiformer.train import compare
from identiformer.train.errors import UserError
from identiformer.train.report.comparison_plots import (
    NAMES,
    draw_comparison,
    draw_lengths,
    draw_scatter,
    draw_training,
)
from PIL import Image


@pytest.fixture
def comparison(make_run):
    def right(number):
        return np.arange(200) < number

    standard = [make_run(seed=seed, right=right(160 + seed), measure=5 + seed) for seed in (0, 2)]
    others = [("identifiable", 158, 0.0), ("shared_value", 150, 0.0), ("small_key", 120, 7.0)]
    return compare(
        [*standard, *(make_run(name, right=right(count), measure=measure) for name, count, measure in others)]
    )


def _line(figure, label, panel=0):
    (line,) = [line for line in figure.axes[panel].get_lines() if line.get_label() == label]
    return np.column_stack(line.get_data()).tolist()


def test_every_picture_is_a_png_and_an_svg(comparison, tmp_path):
    paths = draw_comparison(comparison, str(tmp_path / "new" / "folder"), "slack")
    names = {f"{name}_slack.{ending}" for name in ("accuracy", "training", "length") for ending in ("png", "svg")}
    assert {path.name for path in paths} == {path.name for path in (tmp_path / "new" / "folder").iterdir()} == names
    for path in paths:
        if path.suffix == ".png":
            assert Image.open(path).size[0] > 500
        else:
            assert path.read_text(encoding="utf-8").rstrip().endswith("</svg>")


@pytest.mark.parametrize("measure", ["slack", "margin"])
def test_the_front_holds_the_best_for_the_measures_direction(comparison, measure):
    front = _line(draw_scatter(comparison, measure), "Pareto front")
    assert front == ([[0, 0.79], [6, 0.805]] if measure == "slack" else [[6, 0.805], [7, 0.6]])


def test_curves_are_means_over_seeds_of_the_validations_while_fitting(comparison):
    figure = draw_training(comparison, "slack")
    assert _line(figure, "standard") == [[1, 0.6], [2, 0.8], [3, 0.7]]
    assert _line(figure, "standard", panel=1) == [[1, 6], [2, 6], [3, 6]]


def test_lengths_are_those_of_the_saved_models_epoch(comparison):
    # Seeds have measures 5 and 7, times the bucket's start, and heads add 0 and 1.
    assert _line(draw_lengths(comparison, "slack"), "standard") == [[4.5, 6.5], [12.5, 54.5], [20.5, 102.5]]


def test_groups_without_a_history_are_left_out(make_run, tmp_path):
    folder = make_run()
    (folder / "metrics.csv").unlink()
    (folder / "identifiability.jsonl").unlink()
    draw_comparison(compare([folder]), str(tmp_path / "pictures"))
    assert not draw_lengths(compare([folder]), "slack").axes[0].get_lines()


def test_names_that_look_like_formulas_are_written_as_they_are(make_run, tmp_path):
    folders = [make_run(source=r"$\frac{$"), make_run(source="$x$")]
    draw_comparison(compare(folders), str(tmp_path / "pictures"))


def test_a_measure_that_is_not_there_is_named_with_the_nearest(comparison, tmp_path):
    with pytest.raises(UserError, match=r"no measure 'slak'; choose among identifiable, .* Did you mean 'slack'"):
        draw_comparison(comparison, str(tmp_path), "slak")
    assert "key_ambiguity" in NAMES


def test_a_folder_that_cannot_be_is_a_users_mistake(comparison, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file cannot be written"):
        draw_comparison(comparison, str(tmp_path / "file"))
