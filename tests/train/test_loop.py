import json

import pandas as pd
import pytest
import torch
from identiformer.train import predict, train
from identiformer.train.composing import compose_config
from identiformer.train.data.prepare import prepare
from identiformer.train.errors import UserError
from identiformer.train.loop import class_weight, run
from omegaconf import OmegaConf
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def test_the_run_folder_is_complete(finished):
    names = {path.name for path in finished.folder.iterdir()}
    assert names == {
        "checkpoints",
        "config.yaml",
        "identifiability.jsonl",
        "metrics.csv",
        "model",
        "predictions.parquet",
        "split.parquet",
        "summary.json",
    }
    assert {"config.json", "model.safetensors", "tokenizer.json", "identiformer.json", "README.md"} <= {
        path.name for path in (finished.folder / "model").iterdir()
    }


def test_the_summary_holds_scores_measures_and_facts(finished):
    summary = json.loads((finished.folder / "summary.json").read_text())
    assert summary == finished.summary
    assert summary["val/identifiability/identifiable"] == 1.0
    assert summary["test/identifiability/nullity"] == 0.0
    assert summary["parameters"] == sum(parameter.numel() for parameter in finished.model.parameters())
    assert (summary["preset"], summary["seed"], summary["test/rows"]) == ("identifiable", 0, 8)
    assert summary["versions/torch"] == torch.__version__


def test_it_learns_what_a_few_words_decide(finished):
    assert finished.summary["val/accuracy"] == 1.0


def test_the_saved_model_alone_gives_the_test_predictions(finished, reviews):
    folder = finished.folder / "model"
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    facts = json.loads((folder / "identiformer.json").read_text())
    predictions = pd.read_parquet(finished.folder / "predictions.parquet")
    texts = pd.read_csv(reviews)[facts["text"][0]].iloc[predictions["row"] - 1].tolist()
    batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    assert batch["input_ids"].shape[1] <= facts["max_length"] == tokenizer.model_max_length
    probabilities = model(batch["input_ids"], batch["attention_mask"]).logits.softmax(-1)
    for number, name in model.config.id2label.items():
        column = torch.tensor(predictions[f"probability_{name}"].to_numpy())
        torch.testing.assert_close(probabilities[:, number], column, atol=1e-5, rtol=0)  # float32, other batches
    assert predictions["predicted"].tolist() == [model.config.id2label[i] for i in probabilities.argmax(1).tolist()]


def test_predictions_and_summary_agree(finished, reviews):
    predictions = pd.read_parquet(finished.folder / "predictions.parquet")
    assert (predictions["predicted"] == predictions["label"]).mean() == finished.summary["test/accuracy"]
    assert predictions["row"].is_monotonic_increasing
    assert predictions["label"].tolist() == pd.read_csv(reviews)["verdict"].iloc[predictions["row"] - 1].tolist()


def test_the_split_is_saved_row_by_row(finished):
    split = pd.read_parquet(finished.folder / "split.parquet")
    assert split.groupby("split")["row"].count().to_dict() == {"train": 74, "validation": 8, "test": 8}
    assert sorted(split["row"]) == list(range(1, 91))


def test_the_config_says_what_was_typed(finished, reviews):
    cfg = OmegaConf.load(finished.folder / "config.yaml")
    assert cfg.preset == "identifiable"
    assert cfg.data.train == str(reviews)
    assert (cfg.model.d_value, cfg.model.merge_heads) == (24, "sum")


def test_measures_are_written_for_every_epoch(finished):
    lines = [json.loads(line) for line in (finished.folder / "identifiability.jsonl").read_text().splitlines()]
    assert {line["epoch"] for line in lines} == {0, 1}
    metrics = pd.read_csv(finished.folder / "metrics.csv")
    assert metrics["val/layer_0/identifiability/nullity"].notna().sum() == 3  # two epochs, and the best once more


def test_the_best_checkpoint_is_what_is_saved(finished):
    (best,) = (finished.folder / "checkpoints").glob("best*.ckpt")
    weights = torch.load(best, weights_only=True)["state_dict"]
    saved = finished.model.state_dict()
    assert all(torch.equal(weights[f"model.{name}"], tensor) for name, tensor in saved.items())


def test_the_same_seed_gives_the_same_weights_and_another_does_not(small, reviews, tmp_path):
    def weights(seed):
        overrides = [*small, "trainer.max_epochs=1", f"runs={tmp_path}", f"seed={seed}"]
        return train(overrides, data=str(reviews), text=["review"], label="verdict").model.classifier.weight

    first = weights(1)
    assert torch.equal(first, weights(1))
    assert not torch.equal(first, weights(2))
    assert len(list((tmp_path / "default").iterdir())) == 3


def test_a_config_with_a_stray_layer_is_refused():
    cfg = OmegaConf.create({"layer": {"d_key": 3}})
    with pytest.raises(UserError, match="must begin with `# @package model`"):
        run(cfg)


def test_sizes_that_do_not_fit_are_refused(small, reviews):
    with pytest.raises(UserError, match="merge_heads"):
        train([*small, "model.merge_heads=add"], data=str(reviews), text=["review"], label="verdict")


@pytest.fixture
def as_formats(reviews, tmp_path):
    """The same rows as CSV, TSV, JSONL and parquet."""
    table = pd.read_csv(reviews)
    table.to_csv(tmp_path / "a.csv", index=False)
    table.to_csv(tmp_path / "a.tsv", index=False, sep="\t")
    table.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    table.to_parquet(tmp_path / "a.parquet")
    return [tmp_path / f"a.{ending}" for ending in ("csv", "tsv", "jsonl", "parquet")]


def test_every_format_gives_the_same_model_bit_by_bit(as_formats, small, tmp_path):
    options = {"text": ["review"], "label": "verdict"}
    overrides = [*small, "trainer.max_epochs=1", f"runs={tmp_path}"]
    first, *others = [train(overrides, data=str(path), **options) for path in as_formats]
    for other in others:
        assert other.summary["data_hash"] == first.summary["data_hash"]
        for name, tensor in first.model.state_dict().items():
            assert torch.equal(other.model.state_dict()[name], tensor)


@pytest.mark.parametrize("tokenizer", ["bpe", "wordpiece"])
def test_a_trained_tokenizer_of_another_kind_trains_and_loads(tokenizer, reviews, small, tmp_path):
    overrides = [*small, f"runs={tmp_path}", f"data.tokenizer={tokenizer}", "data.vocab_size=400", "data.max_length=40"]
    result = train(overrides, data=str(reviews), text=["review"], label="verdict")
    assert result.summary["val/accuracy"] > 0.8
    assert predict(str(result.folder), data=str(reviews)).shape == (90, 5)


@pytest.mark.parametrize(
    "override", ["trainer=bf16", "scheduler=linear", "model.pooling=first", "class_weight=balanced"]
)
def test_an_option_trains(override, reviews, small, tmp_path):
    overrides = [override, *small, "trainer.max_epochs=1", f"runs={tmp_path}"]
    result = train(overrides, data=str(reviews), text=["review"], label="verdict")
    assert 0 <= result.summary["test/accuracy"] <= 1
    assert result.summary["val/identifiability/identifiable"] <= 1


def test_early_stopping_stops(reviews, small, tmp_path):
    overrides = ["callbacks=early_stopping", "callbacks.early_stopping.patience=2", *small, "optimizer.lr=0.0"]
    result = train(
        [*overrides, "trainer.max_epochs=30", f"runs={tmp_path}"], data=str(reviews), text=["review"], label="verdict"
    )
    lines = (result.folder / "identifiability.jsonl").read_text().splitlines()
    assert {json.loads(line)["epoch"] for line in lines} == {0, 1, 2}  # the first, and two that are no better


def test_tensorboard_stands_beside_the_csv_log(reviews, small, tmp_path):
    overrides = ["logger=tensorboard", *small, "trainer.max_epochs=1", f"runs={tmp_path}"]
    folder = train(overrides, data=str(reviews), text=["review"], label="verdict").folder
    assert (folder / "metrics.csv").exists()
    assert list((folder / "tensorboard").glob("events.*"))


@pytest.mark.parametrize("layer", ["standard", "identifiable", "shared_value"])
def test_one_batch_is_learnt_by_heart(layer, reviews, small, tmp_path):
    overrides = ["trainer=overfit_one_batch", f"layer={layer}", *small, "trainer.max_epochs=30", f"runs={tmp_path}"]
    result = train(overrides, data=str(reviews), text=["review"], label="verdict")
    assert result.summary["test/accuracy"] == 1.0
    assert result.summary["train/rows"] == 8


def test_balanced_weights_let_rare_classes_count_as_much(tmp_path, small):
    rows = [["fine", "good"]] * 36 + [["dull", "bad"]] * 12
    pd.DataFrame(rows, columns=["text", "label"]).to_csv(tmp_path / "a.csv", index=False)
    data = prepare(compose_config(["data=files", f"data.train={tmp_path / 'a.csv'}"]).data)
    weights = class_weight("balanced", data)
    counts = torch.tensor(list(data.reports["train"].labels.values()))
    assert torch.allclose(weights * counts, torch.full((2,), counts.sum() / 2))
    with pytest.raises(UserError, match="choose balanced or null"):
        class_weight("balance", data)
