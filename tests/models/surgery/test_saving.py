"""Swapped models saved and loaded again, in this process and in another."""

import json
import subprocess
import sys

import pytest
import torch
from identiformer.models import swap_encoder_layers
from small_models import KEEP, OURS, TEXTS, TRANSFORMERS, run, small_model
from transformers import AutoModel, AutoModelForSequenceClassification, BertConfig, BertModel

LOAD = """
import sys, torch
import identiformer.models
from transformers import AutoModelForSequenceClassification
texts, keep, expected = torch.load(sys.argv[1] + "/batch.pt", weights_only=True)
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1])
with torch.no_grad():
    logits = model(texts, attention_mask=keep).logits
    attentions = model(texts, attention_mask=keep, output_attentions=True).attentions
print(torch.equal(logits, expected), len(attentions), type(model).__name__, model.config.model_type)
"""


def test_a_fresh_process_gives_the_same_logits(tmp_path):
    model = small_model("Bert").float()
    swap_encoder_layers(model, d_value=30)
    model.save_pretrained(tmp_path)
    torch.save((TEXTS, KEEP.long(), run(model)), tmp_path / "batch.pt")
    command = [sys.executable, "-c", LOAD, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert result.stdout.split() == ["True", "2", "SwappedBertForSequenceClassification", "identiformer-bert"]


@pytest.mark.parametrize("layers", [None, [1]])
@pytest.mark.parametrize("name", [*TRANSFORMERS, *OURS])
def test_every_structure_loads_again(name, layers, tmp_path):
    model = small_model(name).float()
    swap_encoder_layers(model, layers=layers)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"].startswith("identiformer-")
    loaded, report = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert torch.equal(run(loaded), run(model))
    encoder = AutoModel.from_pretrained(tmp_path)
    for name, parameter in encoder.named_parameters():
        if "pooler" not in name:
            assert torch.equal(parameter, model.base_model.get_parameter(name))


def test_a_swap_inside_a_classifier_is_saved_with_it(tmp_path):
    model = small_model("Bert").float()
    swap_encoder_layers(model.bert)
    model.save_pretrained(tmp_path)
    assert torch.equal(run(AutoModelForSequenceClassification.from_pretrained(tmp_path)), run(model))


def test_a_swap_inside_a_users_module_is_noted(tmp_path):
    model = small_model("Bert").float()
    swap_encoder_layers(torch.nn.ModuleList([model]), layers=[1])
    model.save_pretrained(tmp_path)
    assert torch.equal(run(AutoModelForSequenceClassification.from_pretrained(tmp_path)), run(model))


def test_a_loaded_model_is_swapped_saved_and_loaded_again(tmp_path):
    model = small_model("Bert").float()
    swap_encoder_layers(model, layers=[0])
    for number in range(2):
        model.save_pretrained(tmp_path / str(number))
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path / str(number))
        swap_encoder_layers(model, d_value=31)
    assert [swap["d_value"] for swap in model.config.swapped] == [31, 31]


def test_a_model_that_was_not_swapped_keeps_its_type():
    config = BertConfig(hidden_size=24, num_attention_heads=3, num_hidden_layers=1, vocab_size=9)
    one, other = BertModel(BertConfig(**config.to_dict())), BertModel(config)
    swap_encoder_layers(one)
    assert (one.config.model_type, other.config.model_type) == ("identiformer-bert", "bert")
