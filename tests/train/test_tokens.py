import json
import os
import signal

import pandas as pd
import pytest
import torch
from identiformer.models.identifiability import token_identifiability, tokens
from identiformer.train import Interrupted, identify_tokens
from identiformer.train.cli import main
from identiformer.train.errors import UserError
from identiformer.train.predicting import load_model
from PIL import Image

MEASURES = ["tokens", "words", "positions", "permuted", "angle", "length"]


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Little learning."""
    monkeypatch.setattr(tokens, "STEPS", 20)
    monkeypatch.setattr(tokens, "CHECK", 10)


@pytest.fixture(scope="module")
def model(finished):
    return str(finished.folder)


@pytest.fixture(scope="module")
def data(reviews):
    return ["--data", str(reviews), "--tokens"]


def test_everything_is_measured_and_json_csv_and_python_agree(model, reviews, tmp_path):
    files = {kind: str(tmp_path / f"rates.{kind}") for kind in ("json", "csv", "png")}
    found = identify_tokens(model, data=str(reviews), sample=40, **files)
    document = json.loads((tmp_path / "rates.json").read_text())
    assert document.pop("rates") == found.table.to_dict("records")
    assert document == found.facts
    assert found.table.equals(pd.read_csv(tmp_path / "rates.csv"))
    assert found.table["measure"].unique().tolist() == MEASURES
    assert len(found.table) == 6 * 3 * 2
    assert (found.facts["texts"], found.facts["finished"]) == (40, True)
    embeddings = found.table.query("layer == 0 and measure in ['tokens', 'permuted', 'angle']")
    assert (embeddings["rate"] == 1).all()  # of what is to be found there itself
    assert (found.table.query("measure == 'words'")["chance"] > found.table["chance"].min()).all()
    assert set(found.table.query("measure == 'length'")["distance"]) == {"l2"}
    assert Image.open(tmp_path / "rates.png").size[0] > 1000  # three panels


def test_a_rate_is_that_of_the_models_states(model, reviews):
    """Identity and cosine, from the model's own hidden states."""
    loaded = load_model(model)
    states, texts, ids = [], [], []
    for number, review in enumerate(pd.read_csv(reviews)["review"]):
        batch = loaded.tokenizer(review, return_tensors="pt", truncation=True)
        with torch.no_grad():
            first, last = loaded.model(batch["input_ids"], output_hidden_states=True).hidden_states
        states.append(torch.cat([first, last])[:, 1:])  # [CLS] goes
        texts += [number] * (first.shape[1] - 1)
        ids.append(batch["input_ids"][0, 1:])
    states, ids = torch.cat(states, 1), torch.cat(ids)
    words = loaded.model.get_input_embeddings()(ids).detach()
    table = identify_tokens(model, data=str(reviews), probes=["identity"]).table
    for name, inputs, given in (("tokens", states[0], None), ("words", words, ids)):
        expected = token_identifiability(states[:1], inputs, torch.tensor(texts), given, "identity")
        line = table[(table["measure"] == name) & (table["layer"] == 0)].iloc[0]
        for field in ("rate", "lower", "upper", "chance"):
            assert line[field] == pytest.approx(getattr(expected, field).item(), abs=1e-12)


def test_states_can_be_looked_for_in_another_layer(model, reviews):
    table = identify_tokens(model, data=str(reviews), target=1, probes=["identity"]).table
    assert table.query("measure == 'tokens'")["rate"].tolist()[1] == 1.0
    assert table.query("measure == 'tokens'")["rate"].tolist()[0] < 1.0


def test_texts_are_cut_and_special_tokens_are_looked_for_on_request(model, reviews):
    for special, tokens_of_a_text in ((False, 5), (True, 6)):  # [CLS] is one of six
        options = {"max_length": 6, "special": special, "probes": ["identity"]}
        assert identify_tokens(model, data=str(reviews), **options).facts["tokens"] == 90 * tokens_of_a_text


def test_a_model_without_an_embedding_of_positions_says_so(model, reviews, tmp_path, capsys):
    from transformers import ModernBertConfig, ModernBertForSequenceClassification

    loaded = load_model(model)
    sizes = {"vocab_size": len(loaded.tokenizer), "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    special = dict.fromkeys(("pad_token_id", "cls_token_id", "sep_token_id"), loaded.tokenizer.pad_token_id)
    config = ModernBertConfig(**sizes, **special, intermediate_size=7, bos_token_id=None, eos_token_id=None)
    ModernBertForSequenceClassification(config).save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    options = ["--text", "review", "--sample", "20", "--csv", str(tmp_path / "rates.csv")]
    assert main(["analyze", str(tmp_path), "--data", str(reviews), "--tokens", *options]) == 0
    shown = capsys.readouterr().out
    for measure in ("positions", "permuted"):
        assert f"{measure}: absent, the model has no embedding of positions" in shown
        assert measure not in pd.read_csv(tmp_path / "rates.csv")["measure"].tolist()


def test_tables_fit_a_terminal_of_80_columns_and_hold_the_rates(model, data, tmp_path, capsys):
    options = ["--sample", "40", "--distance", "l2", "--json", str(tmp_path / "rates.json")]
    assert main(["analyze", model, *data, *options]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    document = json.loads((tmp_path / "rates.json").read_text())
    assert (document["distance"], document["lookup"]) == ("l2", "l2")
    for line in document["rates"]:
        interval = "at chance" if line["at_chance"] else f"[{line['lower']:.3f}, {line['upper']:.3f}]"
        assert f"{line['rate']:.3f} {interval}" in shown
    assert any(line["at_chance"] for line in document["rates"])


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C while the ninth rate is measured."""
    calls = []

    def interrupt(*args, **kwargs):
        calls.append(1)
        if len(calls) == 9:
            os.kill(os.getpid(), signal.SIGINT)
        return token_identifiability(*args, **kwargs)

    monkeypatch.setattr("identiformer.train.tokens.token_identifiability", interrupt)


def test_an_interruption_keeps_what_is_done(model, data, tmp_path, capsys, interrupted):
    files = {kind: tmp_path / f"rates.{kind}" for kind in ("json", "csv", "png")}
    options = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
    assert main(["analyze", model, *data, *options]) == 130
    said = capsys.readouterr()
    assert said.err == "Interrupted.\n"
    document = json.loads(files["json"].read_text())
    assert not document["finished"]
    assert len(document["rates"]) == len(pd.read_csv(files["csv"])) == 8
    for line in document["rates"]:
        assert f"{line['rate']:.3f}" in said.out
    assert Image.open(files["png"]).size[0] < 1000  # one panel


def test_quiet_prints_no_tables(model, data, tmp_path, capsys, interrupted):
    assert main(["analyze", model, *data, "--quiet", "--png", str(tmp_path / "rates.svg")]) == 130
    assert capsys.readouterr() == ("", "Interrupted.\n")
    assert "<svg" in (tmp_path / "rates.svg").read_text()


def test_python_is_given_what_was_found_before_an_interruption(model, reviews, interrupted):
    with pytest.raises(Interrupted) as stop:
        identify_tokens(model, data=str(reviews))
    assert len(stop.value.found.table) == 8


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--tokens", "--row", "1"], "--row: leave it out with --tokens, which probes all layers on many texts."),
        (["--tokens", "--hide-special"], "--hide-special: leave it out"),
        (["--tokens", "--attribution"], "--attribution: leave it out"),
        (["--tokens", "--probes", "9"], "--probes: it goes with --attribution."),
        (["--sample", "9"], "--sample: it goes with --tokens."),
        (["--tokens", "--distance", "l1"], "There is no distance 'l1': choose cosine or l2."),
        (["--tokens", "--sample", "2"], "The sample is 2: it takes at least 3 texts."),
        (["--tokens", "--max-length", "1"], "The maximal length is 1: it must be at least 2."),
        (["--tokens", "--max-length", "2"], "There is no text of two tokens or more."),
        (["--tokens", "--csv", "nowhere/x.csv"], "nowhere/x.csv cannot be written: there is no folder 'nowhere'."),
        (["--tokens", "--png", "nowhere/x.png"], "nowhere/x.png cannot be written"),
        (["--tokens", "--text", "story"], "story"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_code_2(model, reviews, options, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["analyze", model, "--data", str(reviews), *options]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"target": 2}, "There is no layer 2: states are those of layers 0 to 1."),
        ({"probes": ["cubic"]}, "There is no probe 'cubic'"),
        ({"train_share": 2.0}, "0 < train_share <= 1"),
    ],
)
def test_an_option_of_python_that_makes_no_sense_is_a_users_mistake(model, reviews, options, sentence):
    with pytest.raises(UserError, match=sentence):
        identify_tokens(model, data=str(reviews), **options)


def test_two_texts_are_too_few(model):
    with pytest.raises(UserError, match="Texts of two tokens or more: 2; it takes at least 3"):
        identify_tokens(model, ["a fine film", "a dull film"])
