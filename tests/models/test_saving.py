"""Saving and loading, in this process and in a fresh one, by the Auto classes and by `pipeline`."""

import json
import subprocess
import sys

import pytest
import torch
from asserting import assert_close, randomise
from identiformer.models import IdentiformerConfig, IdentiformerForSequenceClassification, IdentiformerModel
from identiformer.models.layers import PRESETS
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    pipeline,
)

NAMES = {0: "bad", 1: "fair", 2: "good"}
IDS = [[7, 3, 11, 2], [5, 23, 0, 0]]
WORDS = ["[PAD]", "[UNK]", "[CLS]", *["a", "the", "film", "fine", "dull", "and", "but", "not", "slow", "warm"]]

FRESH = """
import json, sys
import torch
import identiformer.models
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

def describe(folder):
    model, encoder = AutoModelForSequenceClassification.from_pretrained(folder), AutoModel.from_pretrained(folder)
    with torch.no_grad():
        found = {"logits": model(inputs).logits, "pooled": encoder(inputs).pooler_output}
    parts = {"parameters": dict(model.named_parameters()), "buffers": dict(model.named_buffers())}
    classes = [type(part).__name__ for part in (model, encoder)]
    names = AutoConfig.from_pretrained(folder).id2label
    return {"classes": classes, "names": names, "training": model.training, **found, **parts}

inputs = torch.tensor(json.loads(sys.stdin.read()))
out, *folders = sys.argv[1:]
torch.save([describe(folder) for folder in folders], out)
"""


def classifier(config):
    return randomise(IdentiformerForSequenceClassification(config)).eval()


def logits_of(model):
    with torch.no_grad():
        return model(torch.tensor(IDS)).logits


def test_a_fresh_process_loads_the_same_models(config_of, tmp_path):
    options = {"id2label": NAMES, "pooling": "first", "norm_first": False}
    models = {preset: classifier(config_of(preset, **options)) for preset in PRESETS}
    for preset, model in models.items():
        model.save_pretrained(tmp_path / preset)
    command = [sys.executable, "-c", FRESH, "out.pt", *models]
    subprocess.run(command, input=json.dumps(IDS), text=True, check=True, cwd=tmp_path)
    for model, fresh in zip(models.values(), torch.load(tmp_path / "out.pt"), strict=True):
        assert_equals_fresh(model, fresh)


def assert_equals_fresh(model, fresh):
    assert torch.equal(fresh["logits"], logits_of(model))
    with torch.no_grad():
        assert torch.equal(fresh["pooled"], model.encoder(torch.tensor(IDS)).pooler_output)
    for kind, own in (("parameters", dict(model.named_parameters())), ("buffers", dict(model.named_buffers()))):
        assert fresh[kind].keys() == own.keys()
        assert all(torch.equal(fresh[kind][name], own[name]) for name in own)
    assert fresh["names"] == NAMES
    assert fresh["classes"] == ["IdentiformerForSequenceClassification", "IdentiformerModel"]
    assert not fresh["training"]


@pytest.mark.parametrize("options", [{"norm_first": True}, {"norm_first": False, "pooling": "first"}])
def test_loading_gives_equal_logits(make_config, options, tmp_path):
    model = classifier(make_config(**options))
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(logits_of(loaded), logits_of(model))


def test_the_kernel_can_be_chosen_when_loading(make_config, tmp_path):
    model = classifier(make_config())
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path, attn_implementation="eager")
    assert loaded.config._attn_implementation == "eager"
    assert_close(logits_of(loaded), logits_of(model), 1e-5)


def test_bfloat16_survives_saving(make_config, tmp_path):
    model = classifier(make_config()).bfloat16()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype="auto")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert torch.equal(logits_of(loaded), logits_of(model))


# Keys that a checkpoint lacks.

EXPECTED_STD = {  # None: constant, as the second number says
    "encoder.embeddings.word.weight": (128**-0.5, None),
    "encoder.embeddings.position.weight": (0.02, None),
    "encoder.layers.1.attention.value.weight": (128**-0.5, None),
    "encoder.layers.1.attention.query.weight": ((2 / 256) ** 0.5, None),
    "encoder.layers.0.feedforward.inner.weight": ((2 / (128 + 512)) ** 0.5, None),
    "encoder.layers.1.norm1.weight": (None, 1.0),
    "encoder.layers.1.norm2.bias": (None, 0.0),
    "encoder.layers.0.attention.output.bias": (None, 0.0),
    "encoder.norm.weight": (None, 1.0),
    "classifier.bias": (None, 0.0),
}


@pytest.mark.parametrize("missing", EXPECTED_STD)
def test_a_missing_key_is_initialised_and_the_others_are_untouched(missing, tmp_path):
    config = IdentiformerConfig(vocab_size=1009, num_layers=2, max_length=512)
    model = randomise(IdentiformerForSequenceClassification(config), std=5.0)
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    kept = load_file(path)
    del kept[missing]
    save_file(kept, path, metadata={"format": "pt"})
    loaded = IdentiformerForSequenceClassification.from_pretrained(tmp_path).state_dict()
    for name, tensor in kept.items():
        assert torch.equal(loaded[name], tensor), name
    std, constant = EXPECTED_STD[missing]
    if std is None:
        assert (loaded[missing] == constant).all()
    else:
        assert loaded[missing].std().item() == pytest.approx(std, rel=0.1)


def test_an_encoder_gets_a_new_classifier_and_keeps_its_weights(make_config, tmp_path):
    encoder = randomise(IdentiformerModel(make_config()), std=5.0)
    encoder.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    for mine, other in zip(loaded.encoder.parameters(), encoder.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert 0 < loaded.classifier.weight.abs().max() < 2  # Xavier: at most sqrt(6 / 14)
    assert (loaded.classifier.bias == 0).all()


def test_a_classifiers_folder_gives_its_encoder(make_config, tmp_path):
    model = classifier(make_config())
    model.save_pretrained(tmp_path)
    encoder = AutoModel.from_pretrained(tmp_path)
    for mine, other in zip(encoder.parameters(), model.encoder.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_other_sizes_are_refused(make_config, tmp_path):
    classifier(make_config()).save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="mismatch"):
        IdentiformerForSequenceClassification.from_pretrained(tmp_path, vocab_size=31)


# With a tokenizer.


def word_tokenizer():
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        model_input_names=["input_ids", "attention_mask"],
    )


def test_pipeline_classifies_texts_from_a_saved_folder(make_config, tmp_path):
    model, tokenizer = classifier(make_config(vocab_size=len(WORDS), id2label=NAMES)), word_tokenizer()
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    texts = ["a fine film", "slow and dull but not the film", ""]
    with torch.no_grad():
        shares = model(**AutoTokenizer.from_pretrained(tmp_path)(texts, padding=True, return_tensors="pt"))
    shares = shares.logits.softmax(-1)
    for batch_size in (1, 3):
        classify = pipeline("text-classification", model=str(tmp_path), device="cpu", batch_size=batch_size)
        for found, expected in zip(classify(texts), shares, strict=True):
            assert found["label"] == NAMES[int(expected.argmax())]
            assert found["score"] == pytest.approx(float(expected.max()), rel=1e-5)


def test_a_pipeline_gives_every_label_when_asked(make_config, tmp_path):
    model, tokenizer = classifier(make_config(vocab_size=len(WORDS), id2label=NAMES)), word_tokenizer()
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu", top_k=None)
    (found,) = classify(["a fine film"])
    assert {entry["label"] for entry in found} == set(NAMES.values())
    assert sum(entry["score"] for entry in found) == pytest.approx(1, rel=1e-5)
