import pytest
import torch
from asserting import assert_close, randomise
from identiformer.models import IdentiformerForSequenceClassification
from identiformer.models.adapters import Affine, attention_modules, encoder_layers, heads
from torch import nn


def test_what_is_not_known_has_no_heads():
    assert heads(nn.Linear(3, 4)) is None


def test_attention_modules_stand_in_the_order_of_layers(make_config):
    model = IdentiformerForSequenceClassification(make_config(num_layers=3))
    assert attention_modules(model) == [layer.attention for layer in model.encoder.layers]


def test_encoder_layers_are_the_items_of_the_list_that_holds_them(make_config):
    model = IdentiformerForSequenceClassification(make_config(num_layers=3))
    assert encoder_layers(model) == list(model.encoder.layers)
    single = model.encoder.layers[0]
    assert encoder_layers(single) == [single]


def test_a_model_without_known_attention_says_what_is_known():
    with pytest.raises(ValueError, match=r"Sequential holds no .*Known are: .*identiformer's MultiHeadAttention"):
        attention_modules(nn.Sequential(nn.Linear(3, 4)))


def test_heads_describe_the_module(make_config):
    config = make_config()
    module = attention_modules(IdentiformerForSequenceClassification(config))[0]
    found = heads(module)
    assert found.query.weight is module.query.weight
    assert (found.num_heads, found.num_value_heads) == (3, config.num_value_heads)
    assert found.merge_heads == config.merge_heads
    maps = 3 if config.merge_heads == "concat" else 1
    assert found.output_map.shape == (maps, config.d_value, 12)


@pytest.mark.parametrize("bias", [False, True])
def test_affine_is_the_linear_map_in_the_inputs_precision(bias):
    linear = randomise(nn.Linear(5, 7, bias=bias))
    hidden = torch.randn(2, 3, 5, dtype=torch.float64)
    with torch.no_grad():
        expected = linear.double()(hidden)
        found = Affine(linear.weight.float(), None if linear.bias is None else linear.bias.float())(hidden)
    assert_close(found, expected, 1e-12)
