import json

import pytest
from identiformer.train import compare
from identiformer.train.errors import UserError
from identiformer.train.report.compare import comparison_table
from rich.console import Console


def test_a_run_is_read_with_the_interval_of_its_accuracy(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps({"test/accuracy": 0.9, "test/right": 90, "test/rows": 100}))
    (summary,) = compare([tmp_path])
    # Wilson's interval for 90 of 100, from its formula: (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)
    assert summary["test/accuracy_interval"] == pytest.approx([0.825634, 0.944771], abs=1e-6)
    assert summary["run"] == tmp_path.name


def test_the_table_shows_each_run_and_a_dash_for_what_it_has_not(finished, tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps({"preset": "standard"}))
    console = Console(width=90, record=True)
    console.print(comparison_table(compare([finished.folder, tmp_path])))
    lines = {line.split("│")[1].strip(): line for line in console.export_text().splitlines() if "│" in line}
    assert "identifiable" in lines["layer"]
    assert f"{finished.summary['parameters']:,}" in lines["parameters"]
    assert "1.000" in lines["identifiable"]
    assert lines["test accuracy"].split("│")[3].strip() == "-"


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="not the folder of a finished run"):
        compare([tmp_path])
