import itertools

import pytest
import torch
from identiformer.models.layers import PRESETS

LENGTHS = {"standard": 17, "small_key": 17, "identifiable": 128, "shared_value": 128}
SIZES = {  # d_key, d_value, num_value_heads, merge_heads at d_model 128 and 8 heads
    "standard": (16, 16, 8, "concat"),
    "small_key": (8, 16, 8, "concat"),
    "identifiable": (16, 128, 8, "sum"),
    "shared_value": (16, 128, 1, "mean"),
}


def shapes(layer):
    return {name: tuple(parameter.shape) for name, parameter in layer.named_parameters()}


def test_sizes_are_those_of_the_design(preset):
    attention = PRESETS[preset](128, 8).attention
    found = (attention.d_key, attention.d_value, attention.num_value_heads, attention.merge_heads)
    assert found == SIZES[preset]


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(sorted(PRESETS), 2)))
def test_parameter_shapes_tell_presets_apart_but_for_one_pair(one, other):
    equal = shapes(PRESETS[one](128, 8)) == shapes(PRESETS[other](128, 8))
    # One map of 128 values is as large as 8 maps of 16: only the merge tells these two apart.
    assert equal == ({one, other} == {"standard", "shared_value"})


def test_sizes_and_merge_tell_all_presets_apart():
    assert len(set(SIZES.values())) == len(PRESETS)


def test_identifiable_length_at_the_default_size(preset):
    assert PRESETS[preset](128, 8).identifiable_length == LENGTHS[preset]


def test_given_options_take_effect(preset):
    layer = PRESETS[preset](
        12, 3, d_key=7, d_value=11, d_feedforward=17, dropout=0.3, activation="relu", norm_first=True
    )
    assert (layer.attention.d_key, layer.attention.d_value, layer.norm_first) == (7, 11, True)
    assert (layer.attention.dropout, layer.feedforward.dropout.p, layer.dropout.p) == (0.3, 0.3, 0.3)
    assert layer.feedforward.inner.weight.shape == (17, 12)
    assert isinstance(layer.feedforward.activation, torch.nn.ReLU)


def test_defaults_are_those_of_torch_but_for_the_activation(preset):
    layer = PRESETS[preset](48, 3)
    assert layer.norm_first is False
    assert layer.attention.dropout == layer.dropout.p == 0.1
    assert layer.feedforward.inner.out_features == 4 * 48
    assert isinstance(layer.feedforward.activation, torch.nn.GELU)


@pytest.mark.parametrize(
    ("name", "d_model", "num_heads"), [("standard", 13, 3), ("small_key", 13, 3), ("small_key", 15, 3)]
)
def test_heads_that_do_not_divide_are_named(name, d_model, num_heads):
    with pytest.raises(ValueError, match=f"d_model is {d_model} and num_heads {num_heads}"):
        PRESETS[name](d_model, num_heads)


def test_heads_need_not_divide_where_sizes_are_free():
    assert PRESETS["identifiable"](13, 3)(torch.randn(2, 5, 13)).shape == (2, 5, 13)


def test_an_unknown_activation_is_named_with_the_known_ones(preset):
    with pytest.raises(ValueError, match=r"'gleu'.*gelu, relu, silu, tanh"):
        PRESETS[preset](12, 3, activation="gleu")
