import csv
import json
import shutil

import pandas as pd
import pytest
import torch
from identiformer.train import evaluate, predict
from identiformer.train.errors import UserError
from identiformer.train.predicting import load_model
from safetensors.torch import load_file, save_file


def _write(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return str(path)


@pytest.fixture
def model(finished):
    """The run's folder, as people type it."""
    return str(finished.folder)


def test_predictions_of_a_file_are_those_of_the_run(model, finished, reviews):
    table = predict(model, data=str(reviews))
    assert table["row"].tolist() == list(range(1, 91))
    tested = pd.read_parquet(finished.folder / "predictions.parquet")
    again = table[table["row"].isin(tested["row"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(again, tested.drop(columns="label"), atol=1e-5)  # float32, other batches


def test_a_text_is_predicted_alike_alone_and_among_others(model):
    texts = ["A film, 3 minutes of it, fine.", "dull", "so clumsy and cold and tired, so flat"]
    together = predict(model, texts)
    for number, text in enumerate(texts):
        alone = predict(model, [text])
        assert alone["predicted"][0] == together["predicted"][number]
        assert alone["probability"][0] == pytest.approx(together["probability"][number], abs=1e-5)


def test_no_row_is_dropped_not_even_an_empty_one(model, tmp_path):
    table = predict(
        model, data=_write(tmp_path / "new.csv", [["review"], ["fine"], ["  "], [""], ["\u200b"], ["dull"]])
    )
    assert table["row"].tolist() == [1, 2, 3, 4, 5]
    assert table.notna().all().all()
    assert predict(model, [""])["predicted"][0] in ("good", "bad")


def test_probabilities_are_named_by_the_labels_and_sum_to_1(model):
    table = predict(model, ["fine", "dull"])
    assert list(table.columns) == ["row", "predicted", "probability", "probability_bad", "probability_good"]
    assert (table[["probability_bad", "probability_good"]].sum(axis=1) - 1).abs().max() < 1e-6
    assert table["predicted"].tolist() == ["good", "bad"]


def test_a_model_is_found_by_its_run_and_by_its_folder(model, finished):
    pd.testing.assert_frame_equal(predict(model, ["fine"]), predict(str(finished.folder / "model"), ["fine"]))


def test_scores_agree_with_the_run_on_its_test_rows(model, finished, reviews, tmp_path):
    tested = pd.read_parquet(finished.folder / "predictions.parquet")
    rows = pd.read_csv(reviews).iloc[tested["row"] - 1]
    rows.to_csv(tmp_path / "test.csv", index=False)
    scores = evaluate(model, str(tmp_path / "test.csv"), texts_measured=5)  # as many as in the run
    for name in ("accuracy", "macro_f1", "identifiability/nullity", "identifiability/margin"):
        assert scores[name] == pytest.approx(finished.summary[f"test/{name}"], abs=1e-5)
    assert scores["right"] == (tested["label"] == tested["predicted"]).sum()
    assert sum(counts["right"] for counts in scores["classes"].values()) == scores["right"]


def test_rows_that_cannot_be_scored_are_counted(model, tmp_path):
    rows = [["review", "verdict"], ["fine", "good"], ["dull", ""], [" ", "bad"], ["cold", "bad"]]
    scores = evaluate(model, _write(tmp_path / "more.csv", rows))
    assert (scores["read"], scores["rows"]) == (4, 2)
    assert scores["dropped"] == {"no label": 1, "empty text": 1}
    assert scores["majority"] == 0.5


def test_an_unknown_label_is_named_or_dropped_on_request(model, tmp_path):
    rows = [["review", "verdict"], ["fine", "good"], ["so so", "goood"], ["so", "goood"]]
    path = _write(tmp_path / "more.csv", rows)
    with pytest.raises(UserError, match=r"label 'goood' in 2 rows.*Did you mean 'good'"):
        evaluate(model, path)
    assert evaluate(model, path, unknown_labels="drop")["dropped"] == {"unknown label": 2}


def test_a_file_without_labels_can_only_be_predicted(model, tmp_path):
    with pytest.raises(UserError, match="can only be predicted"):
        evaluate(model, _write(tmp_path / "new.csv", [["review", "verdict"], ["fine", ""]]))
    with pytest.raises(UserError, match="no column 'verdict'"):
        evaluate(model, _write(tmp_path / "new.csv", [["review"], ["fine"]]))


@pytest.mark.parametrize("arguments", [{}, {"texts": ["a"], "data": "b.csv"}])
def test_texts_and_a_file_are_alternatives(model, arguments):
    with pytest.raises(UserError, match="either texts or a file"):
        predict(model, **arguments)


def test_a_model_that_is_not_there_is_refused():
    with pytest.raises(UserError, match="'no/model' is neither the folder"):
        predict("no/model", ["a"])


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the model folder that a test may spoil."""
    return shutil.copytree(finished.folder / "model", tmp_path / "model")


def test_another_tokenizer_of_the_same_length_is_refused(copied):
    text = (copied / "tokenizer.json").read_text()
    (copied / "tokenizer.json").write_text(text.replace('"film"', '"flim"'))
    with pytest.raises(UserError, match="the model was trained with"):
        load_model(str(copied))


def test_another_padding_token_is_refused(copied):
    settings = json.loads((copied / "tokenizer_config.json").read_text())
    (copied / "tokenizer_config.json").write_text(json.dumps(settings | {"pad_token": "[SEP]"}))
    with pytest.raises(UserError, match="pads with token 3, the model with 0"):
        load_model(str(copied))


def test_other_sizes_are_refused(copied):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"d_feedforward": 10}))
    with pytest.raises(UserError, match=r"is \(96,\) in the file and \(10,\) by config.json"):
        load_model(str(copied))


def test_fewer_layers_than_were_saved_are_refused(copied):
    weights = load_file(copied / "model.safetensors")
    second = {
        name.replace("layers.0", "layers.1"): weight.clone() for name, weight in weights.items() if "layers.0" in name
    }
    save_file(weights | second, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"the file has encoder\.layers\.1\.\S+, and a model of its config.json"):
        load_model(str(copied))


def test_a_model_without_its_classifier_is_refused(copied):
    weights = load_file(copied / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"not a trained classifier: it has no classifier\.weight"):
        load_model(str(copied))


def test_pickled_weights_are_never_read(copied):
    torch.save(load_file(copied / "model.safetensors"), copied / "pytorch_model.bin")
    (copied / "model.safetensors").unlink()
    with pytest.raises(UserError):
        load_model(str(copied))
