import csv
import json
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from identiformer.models import hidden_token_attribution
from identiformer.models.identifiability import context_profile
from identiformer.train import attribute, train
from identiformer.train.attributing import Interrupted
from identiformer.train.cli import main
from identiformer.train.errors import UserError
from identiformer.train.predicting import load_model
from PIL import Image

LONG = "A film, 3 minutes of it, dull and dull and clever and fine and cold."
SHORT = "A fine film."


@pytest.fixture(scope="module")
def folder(reviews, small, tmp_path_factory):
    """A run of two standard layers, texts of up to 12 tokens."""
    runs = tmp_path_factory.mktemp("runs")
    overrides = [*small, "layer=standard", "model.num_layers=2", f"runs={runs}", "trainer.max_epochs=1"]
    overrides += ["callbacks.monitor.attribution=true"]
    return str(train(overrides, data=str(reviews), text=["review"], label="verdict").folder)


@pytest.fixture(scope="module")
def written(folder, tmp_path_factory):
    """The attribution of two texts, and the JSON and the CSV that were written."""
    path = tmp_path_factory.mktemp("attribution")
    found = attribute(folder, [LONG, SHORT], json=str(path / "all.json"), csv=str(path / "all.csv"))
    with (path / "all.csv").open(encoding="utf-8", newline="") as file:
        return found, json.loads((path / "all.json").read_text(encoding="utf-8")), list(csv.DictReader(file))


def expected(folder, text, probes=32, **options):
    loaded = load_model(folder)
    ids = loaded.tokenizer(text, return_tensors="pt", truncation=True)["input_ids"]
    found = hidden_token_attribution(loaded.model, {"input_ids": ids}, probes, **options)
    return [torch.stack(part)[:, 0] for part in found]


def test_json_holds_what_the_public_function_finds(folder, written):
    document = written[1]
    assert (document["probes"], document["source"]) == (32, "embedding")
    assert [text["row"] for text in document["texts"]] == [1, 2]
    for text, words in zip(document["texts"], (LONG, SHORT), strict=True):
        contributions, errors = expected(folder, words)
        profile = context_profile(contributions)
        assert text["distance"] == profile.distance.tolist()
        assert text["tokens"][0] == "[CLS]"
        for layer, found in enumerate(text["layers"]):
            assert found["layer"] == layer
            assert found["contributions"] == contributions[layer].tolist()
            assert found["standard_error"] == errors[layer].tolist()
            for name in ("own_share", "not_led_by_own", "by_distance"):
                assert found[name] == getattr(profile, name)[layer].tolist()


def test_csv_and_json_agree_to_the_last_digit(written):
    _, document, lines = written
    texts = {text["row"]: text for text in document["texts"]}
    assert len(lines) == 2 * sum(len(text["tokens"]) ** 2 for text in texts.values())
    for line in lines:
        row, layer, hidden, token = (int(line[name]) for name in ("row", "layer", "hidden", "input"))
        found = texts[row]["layers"][layer]
        assert float(line["contribution"]) == found["contributions"][hidden][token]
        assert float(line["standard_error"]) == found["standard_error"][hidden][token]
        assert line["hidden_token"] == texts[row]["tokens"][hidden]
        assert line["input_token"] == texts[row]["tokens"][token]


def test_the_table_is_over_all_tokens_and_distances_over_all_pairs(written):
    found, document, _ = written
    matrices = [[np.array(text["layers"][layer]["contributions"]) for text in document["texts"]] for layer in (0, 1)]
    for layer, line in enumerate(found.table.to_dict("records")):
        own = np.concatenate([matrix.diagonal() for matrix in matrices[layer]])
        led = np.concatenate([matrix.max(1) > matrix.diagonal() for matrix in matrices[layer]])
        assert line["own_share"] == pytest.approx(own.mean())
        assert line["not_led_by_own"] == pytest.approx(led.mean())
        for distance in (-11, -3, 0, 2):
            pairs = np.concatenate(
                [matrix.diagonal(distance) for matrix in matrices[layer] if abs(distance) < len(matrix)]
            )
            (at,) = found.distances.query("layer == @layer and distance == @distance").to_dict("records")
            assert at["contribution"] == pytest.approx(pairs.mean())
            assert at["pairs"] == len(pairs)


def test_exact_contributions_and_those_of_the_previous_layer(folder):
    for options in ({"probes": None}, {"probes": None, "source": "previous"}):
        contributions, errors = expected(folder, SHORT, **options)
        own = attribute(folder, [SHORT], **options).tokens["own_share"]
        np.testing.assert_array_equal(own, context_profile(contributions).own_share.flatten())
        assert not errors.any()


def test_a_file_is_read_as_predict_reads_it(folder, reviews, tmp_path):
    pd.read_csv(reviews).head(5).to_csv(tmp_path / "few.csv", index=False)
    found = attribute(folder, data=str(tmp_path / "few.csv"), text=["review"], probes=2)
    assert found.texts["row"].unique().tolist() == [1, 2, 3, 4, 5]
    one = attribute(folder, data=str(tmp_path / "few.csv"), row=4, probes=2)
    assert one.texts.equals(found.texts[found.texts["row"] == 4].reset_index(drop=True))


def test_progress_runs_to_its_end(folder, monkeypatch):
    told = []

    @contextmanager
    def record(total, quiet):
        told.append(total)
        yield told.append

    monkeypatch.setattr("identiformer.train.attributing._progress", record)
    monkeypatch.setattr("identiformer.models.identifiability.attribution.BLOCK", 24 * 12 * 100)
    attribute(folder, [LONG, SHORT], probes=30)
    total, *places = told  # tangents times tokens: 360 of 12 in products of 100, 150 of 5 in one of 240
    assert total == 12**2 + 5**2
    assert places == pytest.approx([144 * done / 360 for done in (100, 200, 300, 360)] + [total])


def test_a_text_of_nothing_is_its_special_token(folder):
    assert attribute(folder, [""]).tokens["own_share"].tolist() == [1.0, 1.0]


def test_pictures_are_drawn(folder, tmp_path):
    for name, texts in (("one.png", [LONG]), ("two.png", [LONG, SHORT]), ("one.svg", [LONG])):
        attribute(folder, texts, probes=2, png=str(tmp_path / name))
    one, two = (Image.open(tmp_path / name).size for name in ("one.png", "two.png"))
    assert one[0] > two[0]  # the map
    assert "<svg" in (tmp_path / "one.svg").read_text()[:500]


def test_a_run_logs_own_shares_when_asked_for(folder):
    summary = json.loads((Path(folder) / "summary.json").read_text())
    assert 0 < summary["test/attribution/own_share"] < 1
    assert 0 < summary["val/layer_1/attribution/own_share"] < 1


# The command.


def test_the_command_shows_a_table_of_80_columns(folder, tmp_path, capsys):
    files = [part for kind in ("json", "csv", "png") for part in (f"--{kind}", str(tmp_path / f"all.{kind}"))]
    assert main(["analyze", folder, LONG, SHORT, "--attribution", *files]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "2 texts of 8.5 tokens, standard error of a contribution" in " ".join(shown.split())
    first = next(line.split() for line in shown.splitlines() if line.split()[:1] == ["0"])
    table = attribute(folder, [LONG, SHORT]).table
    assert first[1:3] == [f"{table[name][0]:.3f}" for name in ("own_share", "not_led_by_own")]
    assert {path.name for path in tmp_path.iterdir()} == {"all.json", "all.csv", "all.png"}


def test_exact_by_the_command(folder, capsys):
    assert main(["analyze", folder, SHORT, "--attribution", "--probes", "0", "--previous"]) == 0
    assert "1 text of 5.0 tokens, exact" in capsys.readouterr().out


def test_quiet_prints_nothing(folder, capsys):
    assert main(["analyze", folder, SHORT, "--attribution", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--attribution", "--probes", "1"], "--probes is 1: give at least 2, or 0 for exact contributions."),
        (["--attribution", "--token", "1"], "--token: it is about a head's attention"),
        (["--attribution", "--head", "0"], "--head: it is about a head's attention"),
        (["--attribution", "--hide-special"], "--hide-special: it is about a head's attention"),
        (["--probes", "8"], "--probes: it goes with --attribution."),
        (["--previous"], "--previous: it goes with --attribution."),
        (["--attribution", "--layer", "1"], "give --png, and --row if there are more"),
        (["--attribution", "--layer", "2", "--png", "x.png"], "There is no layer 2: the model has layers 0 to 1."),
        (["--attribution", "--row", "2"], "There is no row 2"),
        (["--attribution", "--json", "nowhere/x.json"], "nowhere/x.json cannot be written"),
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


def test_a_number_that_is_not_finite_is_named_by_row_and_layer(folder, tmp_path):
    loaded = load_model(folder)
    with torch.no_grad():
        loaded.model.encoder.layers[1].attention.value.weight[0] = torch.inf
    loaded.model.save_pretrained(tmp_path / "model")
    loaded.tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match="Row 1: A derivative of layer 1 is not finite"):
        attribute(str(tmp_path / "model"), [SHORT], json=str(tmp_path / "all.json"))
    assert not list(tmp_path.glob("all.json*"))  # no half of a file


# Interruptions.


@pytest.fixture
def interrupted_at(monkeypatch):
    """A function of a number: Ctrl-C comes while the text of that number is worked on."""

    def at(number):
        texts = iter(range(number))

        def work(*args, **options):
            if next(texts, None) is None:
                raise KeyboardInterrupt
            return hidden_token_attribution(*args, **options)

        monkeypatch.setattr("identiformer.train.attributing.hidden_token_attribution", work)

    return at


def test_an_interruption_keeps_the_texts_that_are_done(folder, tmp_path, capsys, interrupted_at):
    interrupted_at(2)
    files = [part for kind in ("json", "csv", "png") for part in (f"--{kind}", str(tmp_path / f"all.{kind}"))]
    assert main(["analyze", folder, LONG, SHORT, LONG, "--attribution", *files]) == 130
    said = capsys.readouterr()
    assert "2 texts of 8.5 tokens" in said.out
    assert said.err == "Interrupted.\n"
    assert [text["row"] for text in json.loads((tmp_path / "all.json").read_text())["texts"]] == [1, 2]
    assert pd.read_csv(tmp_path / "all.csv")["row"].unique().tolist() == [1, 2]
    assert (tmp_path / "all.png").exists()


def test_an_interruption_from_python_brings_what_was_found(folder, interrupted_at):
    interrupted_at(1)
    with pytest.raises(Interrupted) as caught:
        attribute(folder, [SHORT, LONG])
    assert caught.value.found.texts["row"].unique().tolist() == [1]


def test_an_interruption_before_the_first_text_leaves_nothing(folder, tmp_path, capsys, interrupted_at):
    interrupted_at(0)
    assert main(["analyze", folder, SHORT, "--attribution", "--csv", str(tmp_path / "all.csv")]) == 130
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.iterdir())
