import io
import json
import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
from identiformer.train import compare
from identiformer.train.errors import UserError
from identiformer.train.report.comparison import comparison_table, describe_comparison, notes, write_comparison
from rich.console import Console

ODD = r"a|b_[bold]$x$ & 5% \n <i> #~^{}.csv"


@pytest.fixture
def comparison(make_run):
    return compare(
        [
            make_run(seed=0, measure=0.25),
            make_run(seed=1, measure=0.75),
            make_run("identifiable", source=ODD),
            make_run("identifiable", source="b"),
        ]
    )


def _screen(comparison, width=200):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(describe_comparison(comparison, width))
    return console.export_text()


def test_a_group_shows_its_mean_and_deviation_and_a_single_run_its_interval(comparison):
    table = comparison_table(comparison).set_index("layer")
    assert table["standard"]["slack"] == "0.500 ± 0.354"
    assert table["standard"]["seeds"] == "0, 1"
    assert table["standard"]["  95 % interval"] == "-"
    assert table["identifiable source=b"]["  95 % interval"] == "[0.739, 0.850]"
    assert table["identifiable source=b"]["parameters"] == "1,000"


def test_the_tests_stand_below_the_accuracy(comparison):
    table = comparison_table(comparison).set_index("layer")
    (test, _) = comparison.tests
    lower, upper = test.equivalence_interval
    assert table[test.name]["difference"] == "+0.000"
    assert table[test.name]["  90 % interval"] == f"[{lower:+.3f}, {upper:+.3f}]"
    assert table[test.name]["  within 0.02"] == "yes"  # 0 of 200 texts differ, which speaks for up to 3
    assert table["standard"]["difference"] == "-"
    assert any("one seed" in note for note in notes(comparison))


def test_figures_that_no_run_has_are_left_out(make_run):
    folder = make_run()
    summary = json.loads((folder / "summary.json").read_text())
    del summary["val/identifiability/slack"]
    (folder / "summary.json").write_text(json.dumps(summary))
    table = comparison_table(compare([folder]))
    assert "slack" not in table["layer"].tolist()
    assert "difference" not in table["layer"].tolist()


def test_a_screen_shows_as_many_columns_as_it_has_room_for(comparison):
    assert _screen(comparison, 200).count("test accuracy") == 1
    narrow = _screen(comparison, 60)
    assert narrow.count("test accuracy") == 2
    assert max(map(len, narrow.splitlines())) <= 60


def test_what_people_typed_is_shown_as_it_is(comparison):
    assert "".join(ODD.split()) in "".join(re.sub(r"[│┃]", "", _screen(comparison)).split())


def test_csv_holds_every_figure_of_every_group(comparison, tmp_path):
    write_comparison(comparison, str(tmp_path / "a.csv"), "csv")
    table = pd.read_csv(tmp_path / "a.csv").set_index("name")
    assert table.loc["standard", "val/identifiability/nullity"] == 0.5
    assert table.loc["standard", "val/identifiability/nullity_std"] == pytest.approx(np.std([0.25, 0.75], ddof=1))
    assert table.loc["standard", "seeds"] == "0 1"
    assert f"identifiable source={ODD}" in table.index


def test_json_is_everything(comparison, tmp_path):
    write_comparison(comparison, str(tmp_path / "a.json"), "json")
    assert json.loads((tmp_path / "a.json").read_text()) == comparison.to_dict()


def test_markdown_is_a_table_in_which_what_people_typed_is_text(comparison, tmp_path):
    write_comparison(comparison, str(tmp_path / "a.md"), "markdown")
    lines = (tmp_path / "a.md").read_text().splitlines()
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    assert {len(line) for line in cells} == {4}
    unescaped = [re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", cell.strip()) for cell in cells[0]]
    assert unescaped == ["layer", "standard", f"identifiable source={ODD}", "identifiable source=b"]
    figures = {line[0].strip(): line[1].strip() for line in cells}
    assert figures["slack"] == "0.500 ± 0.354"


def test_latex_is_a_table_that_latex_sets(comparison, tmp_path):
    write_comparison(comparison, str(tmp_path / "a.tex"), "latex")
    text = (tmp_path / "a.tex").read_text()
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {len(re.split(r"(?<!\\)&", row)) for row in rows} == {4}
    assert r"a\textbar{}b\_[bold]\$x\$ \& 5\% \textbackslash{}n" in rows[0]
    if not shutil.which("pdflatex"):
        return
    document = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{text}\end{{document}}"
    (tmp_path / "b.tex").write_text(document)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "b.tex"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 0


def test_a_place_that_cannot_be_written_is_a_users_mistake(comparison, tmp_path):
    with pytest.raises(UserError, match=r"a\.csv cannot be written: No such file"):
        write_comparison(comparison, str(tmp_path / "nowhere" / "a.csv"), "csv")
