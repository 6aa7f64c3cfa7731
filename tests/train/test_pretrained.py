"""Fine-tuning a pretrained encoder through the ordinary command."""

import json
from pathlib import Path

import pytest
import torch
from identiformer.models.adapters import attention_modules, encoder_layers
from identiformer.train import analyze, predict, train
from identiformer.train.cli import main
from identiformer.train.composing import compose_config
from identiformer.train.data.prepare import prepare
from identiformer.train.pretrained import load_pretrained
from identiformer.train.schedules import one_cycle
from transformers import BertConfig, BertForSequenceClassification, BertModel

SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 31}
SHORT = ["trainer.max_epochs=1", "data.max_length=12", "data.batch_size=8", "callbacks.monitor.texts=5", "quiet=true"]


@pytest.fixture(scope="module")
def encoder(finished, tmp_path_factory):
    """The folder of a tiny BERT without a classifier, with a tokenizer."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = AutoTokenizer.from_pretrained(finished.folder / "model")
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=16, **SIZES)
    BertModel(config).save_pretrained(folder)
    tokenizer.model_max_length = 16
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def tune(encoder, reviews, tmp_path):
    """A function of overrides that fine-tunes the encoder on reviews."""

    def run(*overrides):
        chosen = ["model=pretrained", f"model.name='{encoder}'", f"runs='{tmp_path}'", *SHORT, *overrides]
        return train(chosen, data=str(reviews), text=["review"], label="verdict")

    return run


@pytest.fixture
def load(encoder, reviews):
    """A function of overrides that gives the model as it would be trained."""

    def run(*overrides):
        chosen = ["data=files", "model=pretrained", f"model.name='{encoder}'", *SHORT, *overrides]
        columns = [f"data.train='{reviews}'", "data.text=[review]", "data.label=verdict"]
        cfg = compose_config([*chosen, *columns])
        return load_pretrained(cfg.model, cfg.preset, prepare(cfg.data))

    return run


def test_its_own_layers_are_left_alone_with_the_standard_preset(tune, encoder):
    result = tune()
    config = json.loads((result.folder / "model" / "config.json").read_text())
    assert config["model_type"] == "bert"
    assert result.summary["val/identifiability/nullity"] > 0
    table = predict(str(result.folder), ["a fine film", "a dull one"])
    assert set(table["predicted"]) <= {"good", "bad"}
    before, after = BertModel.from_pretrained(encoder), result.model.bert
    assert not torch.equal(before.encoder.layer[0].output.dense.weight, after.encoder.layer[0].output.dense.weight)


def test_swapped_layers_are_trained_saved_and_predicted_with(tune):
    result = tune("layer=identifiable")
    config = json.loads((result.folder / "model" / "config.json").read_text())
    assert config["model_type"] == "identiformer-bert"
    assert {swap["d_value"] for swap in config["swapped"]} == {24}
    assert {swap["d_key"] for swap in config["swapped"]} == {8}  # its own, not the preset's
    assert result.summary["val/identifiability/identifiable"] == 1
    assert len(predict(str(result.folder), ["a fine film"])) == 1


def test_a_loaded_model_is_in_training_mode_and_keeps_what_it_has_learnt(load, encoder):
    own, swapped = load(), load("layer=identifiable")
    assert all(module.training for module in swapped.model.modules())
    ids = torch.arange(4, 12)[None]
    with torch.no_grad():
        states = [each.model.eval().base_model(ids).last_hidden_state for each in (own, swapped)]
    assert (states[0] - states[1]).abs().max() < 1e-5
    assert str(own).startswith(f"{encoder}: its own layers; 50 parameters start at random, 0 are frozen")
    assert "2 layers swapped: heads added, d_key 8, d_value 24, 3 value maps; the function is kept exactly" in str(
        swapped
    )


def test_typed_sizes_are_taken(load):
    found = load("layer=standard", "model.d_value=20", "model.d_key=4", "model.layers=[1]")
    assert found.swap.layers == (1,)
    assert found.swap.sizes == ((4, 20, 3, "concat"),)
    assert found.swap.total_variation is not None  # smaller keys are fitted to train texts
    assert load("layer=standard", "model.d_key=4", "model.calibration=0").swap.total_variation is None


def test_layers_afresh_have_the_presets_sizes_and_are_new(load):
    found = load("layer=shared_value", "model.preserve=false")
    assert found.swap.sizes == ((16, 24, 1, "mean"),) * 2
    fresh = {parameter for module in attention_modules(found.model) for parameter in module.parameters()}
    names = {name for name, parameter in found.model.named_parameters() if parameter in fresh}
    assert found.new == names | {"classifier.weight", "classifier.bias"}


def rates(found, lr):
    names = {parameter: name for name, parameter in found.model.named_parameters()}
    return {names[p]: group["lr"] for group in found.groups(lr) for p in group["params"]}


def test_learning_rates_fall_with_depth_and_new_parts_have_their_own(load):
    found = rates(load("model.layer_decay=0.5", "model.new_lr=0.01"), 0.004)
    expected = {"bert.embeddings": 0.001, "bert.encoder.layer.0": 0.002, "bert.encoder.layer.1": 0.004}
    expected |= {"bert.pooler": 0.004, "classifier": 0.01}
    for name, rate in found.items():
        assert rate == next(value for prefix, value in expected.items() if name.startswith(prefix))
    assert set(rates(load(), 0.004).values()) == {0.004}


def test_what_adds_up_has_its_share_of_the_rate(load):
    found = rates(load("layer=identifiable", "model.layers=[1]"), 0.003)
    slow = {name for name, rate in found.items() if rate == 0.001}
    assert slow == {f"bert.encoder.layer.1.attention.self.attention.value.{kind}" for kind in ("weight", "bias")}
    found = rates(load("layer=standard", "model.d_value=16", "model.layers=[0]"), 0.003)
    slow = {name for name, rate in found.items() if rate == 0.0015}
    assert slow == {"bert.encoder.layer.0.attention.self.attention.output.weight"}
    assert len(set(found.values())) == 2


def test_one_cycle_keeps_the_groups_rates_apart():
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": p, "lr": rate} for p, rate in zip(parameters, (0.1, 0.3), strict=True)])
    schedule, seen = one_cycle(optimizer, 20, warmup=0.1), []
    for _ in range(19):
        seen.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        schedule.step()
    assert [max(column) for column in zip(*seen, strict=True)] == pytest.approx([0.1, 0.3])


@pytest.mark.parametrize(
    ("freeze", "layers"), [("embeddings", 0), ("0", 0), ("1", 1), ("2", 2), ("encoder", None), ("null", -1)]
)
def test_what_is_frozen_does_not_move(load, freeze, layers):
    model = load(f"model.freeze={freeze}").model
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    blocks = [
        {f"bert.encoder.layer.{n}.{name}" for name, _ in layer.named_parameters()}
        for n, layer in enumerate(encoder_layers(model))
    ]
    embeddings = {f"bert.embeddings.{name}" for name, _ in model.bert.embeddings.named_parameters()}
    if layers is None:
        expected = {name for name, _ in model.named_parameters() if not name.startswith("classifier")}
    else:
        expected = set() if layers < 0 else embeddings.union(*blocks[:layers])
    assert frozen == expected


def test_a_frozen_encoder_is_the_same_after_training(tune, encoder):
    result = tune("model.freeze=encoder", "optimizer.lr=0.01")
    before = BertModel.from_pretrained(encoder).state_dict()
    assert all(torch.equal(tensor, result.model.bert.state_dict()[name]) for name, tensor in before.items())


def test_a_classifier_of_other_classes_is_replaced(load, encoder, tmp_path):
    model = BertForSequenceClassification(BertConfig(num_labels=5, **BertConfig.from_pretrained(encoder).to_dict()))
    model.save_pretrained(tmp_path)
    found = load(f"model.name='{tmp_path}'", f"data.tokenizer='{encoder}'")
    assert found.model.config.id2label == {0: "bad", 1: "good"}
    assert found.new == {"classifier.weight", "classifier.bias"}


def test_an_encoder_without_a_classifier_is_analyzed(encoder):
    heads = analyze(str(encoder), ["a fine film , clever and moving and bright"]).heads
    assert len(heads) == 6
    assert (heads["rank"] <= 8).all()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.name=/no/such/folder", "data.tokenizer=word"], "model.name '/no/such/folder' is no model that can be"),
        (["data.tokenizer=word", "data.vocab_size=9"], "own means nothing to"),
        (["layer=shared_value"], "layer=shared_value: With num_value_heads 1 several heads share"),
        (["layer=identifiable", "model.d_value=8"], "layer=identifiable: d_value 8 cannot do exactly"),
        (["layer=identifiable", "model.layers=[7]"], "There is no layer 7"),
        (["model.freeze=3"], "model.freeze is 3: give embeddings, encoder, or a number up to 2"),
        (["model.freeze=all"], "model.freeze is 'all'"),
        (["data.max_length=99"], "data.max_length is 99, but the tokenizer"),
    ],
)
def test_a_users_mistake_is_one_sentence(overrides, message, encoder, reviews, tmp_path, capsys):
    words = ["train", "--data", str(reviews), "--text", "review", "--label", "verdict", f"runs={tmp_path}", *SHORT]
    words = [word for word in words if not any(word.split("=")[0] == given.split("=")[0] for given in overrides)]
    code = main(
        [*words, "model=pretrained", *([] if "name" in overrides[0] else [f"model.name={encoder}"]), *overrides]
    )
    error = capsys.readouterr().err
    assert code == 2
    assert message in " ".join(error.split())
    assert "Traceback" not in error
    assert not list(Path(tmp_path).iterdir())


def test_a_name_is_asked_for(reviews, capsys):
    assert main(["train", "--data", str(reviews), "--text", "review", "--label", "verdict", "model=pretrained"]) == 2
    assert "model.name is missing: give model.name=..." in capsys.readouterr().err


def test_a_decoder_is_refused(encoder, load, tmp_path, finished):
    config = BertConfig(
        is_decoder=True, **{k: v for k, v in BertConfig.from_pretrained(encoder).to_dict().items() if k != "is_decoder"}
    )
    BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(Exception, match="holds no attention module that can be read"):
        load(f"model.name='{tmp_path}'", f"data.tokenizer='{encoder}'")
