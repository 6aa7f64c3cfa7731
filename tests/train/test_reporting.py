import json
import math
import re
import shutil

import pytest
from identiformer.train import make_report
from identiformer.train.cli import main
from identiformer.train.errors import UserError

LONG = "A film, 3 minutes of it, dull and dull and clever and fine and cold."


def _content(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page.html)[1])


@pytest.fixture(scope="module")
def model(finished):
    return str(finished.folder / "model")


def test_a_run_alone_shows_its_config_scores_curves_and_measures(finished):
    (about,) = _content(make_report(str(finished.folder)))["models"]
    facts = dict(about["facts"])
    assert facts["layer"] == "identifiable"
    assert facts["classes"] == "bad, good"
    assert facts["data"].endswith("reviews.csv")
    assert about["scores"]["accuracy"]["test"] == finished.summary["test/accuracy"]
    assert set(about["documents"]) == {"Config", "Model", "Card"}
    assert about["texts"] == []
    written = (finished.folder / "identifiability.jsonl").read_text().splitlines()
    assert about["measures"] == [json.loads(line) for line in written]


def test_a_curve_has_a_point_per_epoch_and_not_the_best_checkpoints_validation(finished):
    (about,) = _content(make_report(str(finished.folder)))["models"]
    assert len(about["curves"]["val/accuracy"]) == 2  # epochs
    assert not any(name.startswith("test/") for name in about["curves"])


def test_numbers_that_are_not_finite_are_left_out(finished, tmp_path):
    folder = shutil.copytree(finished.folder, tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"test/loss": math.inf, "test/macro_f1": math.nan}))
    (folder / "metrics.csv").write_text("step,train/loss\n1,2.5\n2,inf\n3,\n4,nan\n5,0.5\n")
    (about,) = _content(make_report(str(folder)))["models"]
    assert about["curves"] == {"train/loss": [[1, 2.5], [5, 0.5]]}
    assert about["scores"]["loss"].keys() == {"val"}


def test_rows_of_a_file_are_explored_from_the_first(model, reviews):
    (about,) = _content(make_report(model, data=str(reviews), rows=3))["models"]
    assert [text["row"] for text in about["texts"]] == [1, 2, 3]
    assert len(about["texts"][0]["heads"]) == 3
    assert sum(probability for _, probability in about["texts"][0]["prediction"]) == pytest.approx(1)


def test_several_models_stand_beside_each_other(finished, model):
    models = _content(make_report([str(finished.folder), model], ["a fine film"]))["models"]
    assert [about["name"] for about in models] == [finished.folder.name, "model"]
    assert len({head["block"] for about in models for head in about["texts"][0]["heads"]}) == 6


def test_a_sweep_stands_for_its_finished_runs(finished, tmp_path):
    for name in ("first", "second"):
        shutil.copytree(finished.folder, tmp_path / name)
    (tmp_path / "points").mkdir()
    for number, point in enumerate(({"run": "first"}, {"error": "Failed."}, {"run": "second"})):
        (tmp_path / "points" / f"{number:04}.json").write_text(json.dumps(point))
    (tmp_path / "sweep.json").write_text("{}")
    assert [about["name"] for about in _content(make_report(str(tmp_path)))["models"]] == ["first", "second"]


def test_intervals_are_there_for_the_rows_asked_for_where_a_text_has_them(model):
    (about,) = _content(make_report(model, [LONG, "Dull."], intervals=[(0, 1, 4), (0, 1, 0), (0, 2, 5)]))["models"]
    found = [{head["head"]: sorted(head["intervals"]) for head in text["heads"]} for text in about["texts"]]
    assert found == [{0: [], 1: ["0", "4"], 2: ["5"]}, {0: [], 1: ["0"], 2: []}]


def test_the_command_takes_folders_then_texts(finished, model, tmp_path, capsys):
    path = tmp_path / "x.html"
    words = [str(finished.folder), model, "A fine film.", LONG, "--intervals", "0", "0,2", "1", "-o", str(path)]
    assert main(["report", *words]) == 0
    assert "x.html: 0." in capsys.readouterr().out
    content = json.loads(re.search(r'id="data">(.*?)</script>', path.read_text())[1])
    assert [[text["text"] for text in about["texts"]] for about in content["models"]] == [["A fine film.", LONG]] * 2
    heads = content["models"][1]["texts"][0]["heads"]
    assert [list(head["intervals"]) for head in heads] == [["1"], [], ["1"]]


def test_a_page_that_would_be_too_large_is_refused_in_a_sentence(model, reviews, monkeypatch):
    monkeypatch.setattr("identiformer.train.reporting.LIMIT", 5000)
    with pytest.raises(UserError, match=r"larger than .* fewer or shorter texts, --rows chooses how many of a file"):
        make_report(model, data=str(reviews))
    monkeypatch.setattr("identiformer.train.reporting.LIMIT", 100)
    with pytest.raises(UserError, match="give a shorter text"):
        make_report(model, [LONG])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "is not the folder of a finished run"),
        (["--intervals", "0", "0", "0"], "--intervals belong to texts"),
        (["x", "--intervals", "1", "0", "0"], "--intervals: there is no layer 1: the model has layers 0 to 0."),
        (["x", "--intervals", "0", "3", "0"], "--intervals: there is no head 3: layer 0 has heads 0 to 2."),
        (["x", "--intervals", "0", "0", "9"], "--intervals: there is no token 9: the longest text has tokens 0 to 1."),
        (["x", "--intervals", "0", "0", "a"], "--intervals 0 0 a: give three whole numbers, or lists as 3,5."),
        (["x", "--data", "missing.csv"], "Give either texts or a file"),
        (["x", "--output", "nowhere/x.html"], "nowhere/x.html cannot be written: there is no folder 'nowhere'."),
    ],
)
def test_a_users_mistake_is_one_sentence_and_code_2(model, options, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", model, "-o", "x.html", *options]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
