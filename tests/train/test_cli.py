import subprocess
import sys

import pandas as pd
import pytest
from identiformer.train import predict
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


def test_data_describes_without_training(reviews, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = ["--text", "review", "--label", "verdict", "data.max_length=9"]
    assert main(["data", str(reviews), *options]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "train: 90 rows read" in shown
    assert "cut at 9" in shown
    assert "bad │ 37 │ 4 │ 4" in shown
    assert not list(tmp_path.iterdir())


def test_data_takes_the_name_of_a_data_set(capsys):
    assert main(["data", "movie_snippets"]) == 0
    assert "7,541" in capsys.readouterr().out


def test_evaluate_prints_scores_beside_the_majority(finished, reviews, capsys):
    assert main(["evaluate", str(finished.folder), "--data", str(reviews)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "of 90 right" in shown
    assert "always the most frequent class: accuracy 0.5000" in shown
    assert "identifiability/identifiable │ 1 " in shown


def test_predict_prints_texts_as_they_are(finished, capsys):
    assert main(["predict", str(finished.folder), "fine [bold]film[/bold]", "dull"]) == 0
    shown = capsys.readouterr().out
    assert "[bold]film" in shown
    assert "probability" in shown


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_predict_writes_a_file_that_holds_the_same_numbers(finished, reviews, tmp_path, ending):
    output = tmp_path / f"out.{ending}"
    assert main(["predict", str(finished.folder), "--data", str(reviews), "--output", str(output)]) == 0
    read = pd.read_csv(output) if ending == "csv" else pd.read_json(output, orient="records", lines=True)
    expected = predict(str(finished.folder), data=str(reviews))
    pd.testing.assert_frame_equal(read, expected, check_dtype=False, atol=1e-7)


def test_an_output_of_unknown_kind_is_refused_before_anything_is_read(capsys):
    assert main(["predict", "nowhere", "a", "--output", "x.xls"]) == 2
    assert "ends in .csv or .jsonl" in capsys.readouterr().err


def test_texts_of_two_columns_are_given_in_pairs(reviews, small, tmp_path, capsys):
    columns = ["--text", "id", "--text", "review", "--label", "verdict"]
    assert main(["train", "--data", str(reviews), *columns, *small, f"runs={tmp_path}", "trainer.max_epochs=1"]) == 0
    (folder,) = (tmp_path / "default").iterdir()
    assert main(["predict", str(folder), "1", "fine", "2", "dull"]) == 0
    assert main(["predict", str(folder), "1", "fine", "2"]) == 2
    assert "the model reads 2 columns" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "options", "sentence"),
    [
        (
            "text,label\nfine,a\ndull,b\n",
            ["--text", "txt"],
            "no column 'txt' among 'text', 'label'. Did you mean 'text'?",
        ),
        ("text;label\nfine;a\ndull;b\n", [], "give the separator by --separator"),
        ("text,label\nfine,a\ndull,b\n", ["--separator", ";"], "give the separator by --separator"),
        ("text,label\nfine,a\ndull,a\n", [], "one label, 'a'"),
        ("text,label\n", [], "a.csv has no rows"),
        ("text,label\ncaf\xe9,a\ndull,b\n", [], "byte 15 cannot be read as utf-8"),
        ("text,label\nfine,a\ndull,b\n", ["--encoding", "utf-9"], "no encoding 'utf-9'"),
        ("text,label\nfine,a\ndull,b\n", ["data.tokenizer=wrd"], "no tokenizer 'wrd'"),
        ("text,label\nfine,a\ndull,b\n", ["model.pooling=max"], "Field 'pooling' expected one of"),
        ("text,label\nfine,a\ndull,b\n", ["model.activation=gulp"], "choose one of gelu"),
        ("text,label\nfine,a\ndull,b\n", ["trainer.max_epochs=many"], "max_epochs"),
        ("text,label\nfine,a\ndull,b\n", ["class_weight=equal"], "choose balanced or null"),
        ("text,label\nfine,a\ndull,b\n", ["data=ag_nws"], "Did you mean 'ag_news'?"),
    ],
)
def test_a_file_or_option_that_does_not_fit_is_one_sentence(content, options, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = content.split("\n", 2)
    (tmp_path / "a.csv").write_bytes("\n".join([rows[0], *rows[1:2] * 12, *rows[2:] * 12]).encode("latin-1"))
    files = [] if any(option.startswith("data=") for option in options) else ["--data", "a.csv"]
    assert main(["train", *files, "--quiet", "model.d_model=24", "model.num_heads=3", *options]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_a_label_that_only_the_test_file_has_is_named_with_its_count(reviews, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    table = pd.read_csv(reviews)
    table["verdict"] = table["verdict"].replace("good", "goood")
    table.to_csv("test.csv", index=False)
    columns = ["--text", "review", "--label", "verdict"]
    assert main(["train", "--data", str(reviews), "--test", "test.csv", *columns, "--quiet"]) == 2
    assert "'goood' in 45 rows, and the train split has not. Did you mean 'good'?" in capsys.readouterr().err
