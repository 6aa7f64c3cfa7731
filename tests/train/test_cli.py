import subprocess
import sys

import pytest
from identiformer.train.cli import main


def test_a_run_from_another_folder_by_the_console_program(reviews, small, tmp_path):
    command = [sys.executable, "-m", "identiformer", "train", "layer=shared_value", "--data", str(reviews)]
    command += ["--text", "review", *small, "name=mine", "--label", "verdict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""  # quiet=true
    (folder,) = (tmp_path / "runs" / "mine").iterdir()
    assert folder.name.startswith("shared_value-seed0-")
    assert "identiformer train layer=shared_value --data" in (folder / "model" / "README.md").read_text()


def test_a_run_says_what_it_reads_and_how_long_a_text_may_be(reviews, small, tmp_path, capsys):
    overrides = [*small, "quiet=false", f"runs={tmp_path}"]
    assert main(["train", "--data", str(reviews), "--text", "review", "--label", "verdict", *overrides]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "train: 90 rows read" in shown
    assert "bad │ 37 │ 4 │ 4" in shown
    assert "can be identified up to 9 tokens" in shown  # standard: d_value 8, and one
    assert "of the validation texts are within that" in shown


def test_compare_prints_a_table(finished, capsys):
    assert main(["compare", str(finished.folder)]) == 0
    assert "test accuracy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["train", "--dta", "x.csv"], "no option '--dta'. Did you mean '--data'?"),
        (["train", "layer=identifable"], "Did you mean 'identifiable'?"),
        (["train", "--data", "missing.csv"], "no file 'missing.csv'"),
        (["train", "reviews.csv"], "no option 'reviews.csv'"),
        (["compare", "nowhere"], "not the folder of a finished run"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_code_2(argv, sentence, capsys):
    assert main(argv) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    assert said.out == ""


@pytest.mark.parametrize("argv", [["--help"], ["train", "--help"], ["compare", "--help"]])
def test_help_shows_an_example(argv, capsys):
    assert main(argv) == 0
    assert "identiformer" in capsys.readouterr().out


def test_help_does_not_wait_for_torch():
    code = "import sys; from identiformer.train.cli import main; main(['train', '--help']); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
