import csv
import json
import math

import numpy as np
import pytest
import torch
from identiformer.models import record_heads
from identiformer.models.identifiability import (
    agreement,
    attention_intervals,
    attention_slack,
    effective_attention,
    key_ambiguity,
    max_entropy_attention,
    null_space,
)
from identiformer.train import analyze, train
from identiformer.train.cli import main
from identiformer.train.errors import UserError
from identiformer.train.predicting import load_model
from identiformer.train.report.analysis import MATRICES
from PIL import Image

LONG = "A film, 3 minutes of it, dull and dull and clever and fine and cold."
SHORT = "A fine film."


@pytest.fixture(scope="module")
def folder(reviews, small, tmp_path_factory):
    """A run of two standard layers: heads of 8 values, texts of up to 12 tokens, so that long ones are ambiguous."""
    runs = tmp_path_factory.mktemp("runs")
    overrides = [*small, "layer=standard", "model.num_layers=2", f"runs={runs}", "trainer.max_epochs=1"]
    return str(train(overrides, data=str(reviews), text=["review"], label="verdict").folder)


@pytest.fixture(scope="module")
def written(folder, tmp_path_factory):
    """The analysis of two texts, and the JSON and the CSV that were written."""
    path = tmp_path_factory.mktemp("analysis")
    found = analyze(folder, [LONG, SHORT], json=str(path / "all.json"), csv=str(path / "all.csv"))
    with (path / "all.csv").open(encoding="utf-8", newline="") as file:
        return found, json.loads((path / "all.json").read_text(encoding="utf-8")), list(csv.DictReader(file))


def _records(folder, text):
    loaded = load_model(folder)
    batch = loaded.tokenizer(text, return_tensors="pt", truncation=True)
    with torch.no_grad(), record_heads(loaded.model) as records:
        loaded.model(input_ids=batch["input_ids"])
    return batch["input_ids"][0], loaded.tokenizer, records


def _heads(document):
    return {(text["row"], head["layer"], head["head"]): head for text in document["texts"] for head in text["heads"]}


def _by_public_functions(record, head):
    """Numbers and maps of a head, by their names in the JSON."""
    weights, value, maps = record.weights[0, head], record.value[0, head], record.output_map[head]
    space, slack = null_space(value, maps), attention_slack(weights, value, maps)
    effective = [effective_attention(weights, value, maps, preserve_sum=kept) for kept in (False, True)]
    plain, summed = (agreement(weights, matrix) for matrix in effective)
    ambiguity = key_ambiguity(weights, record.key[0, head], value, maps).ambiguity
    width = (slack.upper - slack.lower).gather(1, weights.argmax(-1, keepdim=True))
    numbers = {name: getattr(space, name) for name in ("length", "rank", "nullity", "simplex_nullity", "margin")}
    numbers |= {"residual": plain.residual, "negative_mass": plain.negative_mass, "pearson": plain.pearson}
    numbers |= {"pearson_preserve_sum": summed.pearson, "identifiable": space.identifiable, "slack": width.mean()}
    numbers |= {"key_ambiguity": ambiguity.double().mean(), "key_ambiguity_by_row": ambiguity}
    matrices = [weights, *effective, max_entropy_attention(weights, value, maps).weights, *slack]
    return numbers | dict(zip(MATRICES, matrices, strict=True))


@pytest.mark.parametrize(("row", "text"), [(1, LONG), (2, SHORT)])
def test_json_holds_what_the_public_functions_say_of_the_same_records(folder, written, row, text):
    heads = _heads(written[1])
    ids, tokenizer, records = _records(folder, text)
    assert written[1]["texts"][row - 1]["tokens"] == tokenizer.convert_ids_to_tokens(ids)
    for record in records:
        for head in range(3):
            found = heads[row, record.layer, head]
            for name, expected in _by_public_functions(record, head).items():
                # Float64 from the same records; where the head is identifiable, slack is a point to 1e-8 only.
                np.testing.assert_allclose(found[name], expected, atol=1e-8 if "slack" in name else 1e-11, rtol=0)


def test_the_tests_have_identifiable_and_other_heads(written):
    identifiable = {key: head["identifiable"] for key, head in _heads(written[1]).items()}
    assert {identifiable[1, 0, head] for head in range(3)} == {0.0}
    assert {identifiable[2, 0, head] for head in range(3)} == {1.0}


def test_csv_and_json_agree_to_the_last_digit(written):
    _, document, lines = written
    heads = _heads(document)
    tokens = {text["row"]: text["tokens"] for text in document["texts"]}
    assert len(lines) == 6 * sum(len(text) ** 2 for text in tokens.values())
    for line in lines:
        row, layer, head, query, key = (int(line[name]) for name in ("row", "layer", "head", "query", "key"))
        assert (line["query_token"], line["key_token"]) == (tokens[row][query], tokens[row][key])
        for name in MATRICES:
            assert float(line[name]) == heads[row, layer, head][name][query][key]
        assert line["interval_lower"] == ""  # no row was chosen


def test_the_table_is_the_mean_over_texts(written):
    found, document, _ = written
    assert found.table["texts"].tolist() == [2] * 6
    for line in found.table.to_dict("records"):
        both = [_heads(document)[row, line["layer"], line["head"]] for row in (1, 2)]
        for name in ("length", "nullity", "key_ambiguity", "slack", "pearson"):
            assert line[name] == pytest.approx(np.mean([head[name] for head in both]))


def test_a_text_alone_has_the_numbers_that_it_has_among_others(folder, written):
    alone = analyze(folder, [SHORT]).heads
    among = written[0].heads
    among = among[among["row"] == 2].reset_index(drop=True)
    assert alone.drop(columns="row").equals(among.drop(columns="row"))


def test_a_file_is_read_as_predict_reads_it(folder, reviews):
    found = analyze(folder, data=str(reviews), text=["review"])
    assert found.heads["row"].unique().tolist() == list(range(1, 91))
    one = analyze(folder, data=str(reviews), row=7)
    assert one.heads.equals(found.heads[found.heads["row"] == 7].reset_index(drop=True))


def test_a_text_of_nothing_is_its_special_token(folder):
    found = analyze(folder, [""])
    assert found.table["length"].tolist() == [1.0] * 6
    assert found.table["pearson"].isna().all()
    assert found.table["identifiable"].tolist() == [1.0] * 6


def test_what_is_no_number_is_null(folder, tmp_path):
    analyze(folder, [""], json=str(tmp_path / "one.json"))
    (text,) = json.loads((tmp_path / "one.json").read_text())["texts"]
    assert text["heads"][0]["pearson"] is None
    assert text["special"] == [True]


def test_the_chosen_row_is_listed_with_its_exact_interval(folder, tmp_path):
    files = {"json": str(tmp_path / "all.json"), "csv": str(tmp_path / "all.csv")}
    found = analyze(folder, [LONG], layer=1, head=2, token=4, **files)
    _, _, records = _records(folder, LONG)
    record = records[1]
    weights = record.weights[0, 2]
    exact = attention_intervals(weights[4], record.value[0, 2], record.output_map[2])
    tokens = found.tokens
    assert tokens["position"].tolist() == list(range(12))
    np.testing.assert_array_equal(tokens["raw"], weights[4])
    np.testing.assert_array_equal(tokens["lower"], exact.lower)
    np.testing.assert_array_equal(tokens["upper"], exact.upper)
    assert (tokens["upper"] - tokens["lower"]).max() > 0.01
    heads = _heads(json.loads((tmp_path / "all.json").read_text()))
    assert heads[1, 1, 2]["interval"] == {"token": 4, "lower": exact.lower.tolist(), "upper": exact.upper.tolist()}
    assert sum("interval" in head for head in heads.values()) == 1
    with (tmp_path / "all.csv").open(newline="") as file:
        with_interval = [line for line in csv.DictReader(file) if line["interval_lower"]]
    assert {(line["layer"], line["head"], line["query"]) for line in with_interval} == {("1", "2", "4")}
    assert [float(line["interval_upper"]) for line in with_interval] == exact.upper.tolist()


def test_special_tokens_are_hidden_from_sight_and_not_from_the_mathematics(folder, tmp_path, capsys):
    options = ["--token", "4", "--png", str(tmp_path / "map.png")]
    assert main(["analyze", folder, LONG, *options]) == 0
    whole, size = capsys.readouterr().out, Image.open(tmp_path / "map.png").size
    assert main(["analyze", folder, LONG, *options, "--hide-special"]) == 0
    hidden = capsys.readouterr().out
    assert "[CLS]" in whole
    assert [line for line in whole.splitlines() if "[CLS]" not in line] == hidden.splitlines()
    assert Image.open(tmp_path / "map.png").size == size  # both are of the least size


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--layer", "2", "--token", "0"], "There is no layer 2: the model has layers 0 to 1."),
        (["--layer", "-1", "--token", "0"], "There is no layer -1"),
        (["--head", "3", "--png", "x.png"], "There is no head 3: layer 0 has heads 0 to 2."),
        (["--token", "12"], "There is no token 12: row 1 has tokens 0 to 11."),
        (["--row", "2"], "There is no row 2: there are rows 1 to 1."),
        (["--layer", "1"], "give one of these, too"),
        ([SHORT, "--token", "0"], "show one text of the 2: choose it by --row"),
        (["--data", "missing.csv"], "Give either texts or a file"),
        (["--json", "nowhere/x.json"], "nowhere/x.json cannot be written: there is no folder 'nowhere'."),
        (["--png", "nowhere/x.png"], "nowhere/x.png cannot be written"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_code_2(folder, options, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["analyze", folder, LONG, *options]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("part", "name"), [("value", "values"), ("key", "keys")])
def test_a_number_that_is_not_finite_is_named_by_layer_and_head(folder, tmp_path, part, name):
    loaded = load_model(folder)
    attention = loaded.model.encoder.layers[1].attention
    with torch.no_grad():
        getattr(attention, part).bias[11] = math.inf  # heads of 8
    loaded.model.save_pretrained(tmp_path / "model")
    loaded.tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match=f"Row 1, layer 1, head 1: the {name} hold a number that is not finite"):
        analyze(str(tmp_path / "model"), [SHORT], json=str(tmp_path / "all.json"))
    assert not list(tmp_path.glob("all.json*"))  # no half of a file


def test_a_model_without_known_attention_is_a_users_mistake(folder, tmp_path):
    from transformers import GPT2Config, GPT2ForSequenceClassification

    loaded = load_model(folder)
    sizes = {"vocab_size": len(loaded.tokenizer), "n_embd": 12, "n_layer": 1, "n_head": 2}
    GPT2ForSequenceClassification(GPT2Config(**sizes, pad_token_id=0)).save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="no attention module that can be read"):
        analyze(str(tmp_path), [SHORT])


def test_quiet_prints_nothing(folder, capsys):
    assert main(["analyze", folder, LONG, "--token", "1", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_tables_fit_a_terminal_of_80_columns_and_hold_the_nullity(folder, capsys):
    assert main(["analyze", folder, LONG, SHORT]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "2 texts of 8.5 tokens on average" in shown
    nullity = np.mean([null_space(r.value[0, 1], r.output_map[1]).nullity for r in (_records(folder, LONG)[2][0],)])
    first = next(line.split() for line in shown.splitlines() if line.split()[:2] == ["0", "1"])
    assert float(first[3]) == nullity / 2  # the short text has none


def test_an_identifiable_model_has_no_slack(finished):
    table = analyze(str(finished.folder), [LONG]).table
    assert table["identifiable"].tolist() == [1.0] * 3
    assert (table["slack"] == 0).all()
    assert (table["pearson_preserve_sum"] > 1 - 1e-9).all()
