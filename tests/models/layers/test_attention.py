import math

import pytest
import torch
from asserting import assert_close, randomise
from identiformer.models.layers import PRESETS, MultiHeadAttention
from identiformer.models.layers.attention import AVERAGED
from references import attention as reference
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = {
    "concat": {"merge_heads": "concat", "num_value_heads": 4},
    "concat, two value heads": {"merge_heads": "concat", "num_value_heads": 2},
    "sum": {"merge_heads": "sum", "num_value_heads": 4},
    "sum, two value heads": {"merge_heads": "sum", "num_value_heads": 2},
    "mean": {"merge_heads": "mean", "num_value_heads": 4},
    "mean, one value head": {"merge_heads": "mean", "num_value_heads": 1},
}


def build(d_model=12, num_heads=4, d_key=7, d_value=11, num_value_heads=None, merge_heads="concat", dropout=0.0):
    return MultiHeadAttention(
        d_model=d_model,
        num_heads=num_heads,
        d_key=d_key,
        d_value=d_value,
        num_value_heads=num_value_heads or num_heads,
        merge_heads=merge_heads,
        dropout=dropout,
    )


def per_head(linear, size, head):
    """The (weight, bias) of one head of a map to all heads."""
    place = slice(head * size, (head + 1) * size)
    return linear.weight[place], linear.bias[place]


def output_maps(module):
    """Each head's W_h, (d_value, d_model), so that the output is the sum over heads of A_h V_h W_h."""
    columns = module.output.weight.T
    if module.merge_heads == "concat":
        return [columns[head * module.d_value : (head + 1) * module.d_value] for head in range(module.num_heads)]
    divisor = module.num_heads if module.merge_heads == "mean" else 1
    return [columns / divisor] * module.num_heads


def looped(module, hidden, keep):
    heads = range(module.num_heads)
    sharing = module.num_heads // module.num_value_heads
    return reference.multi_head_attention(
        hidden,
        [per_head(module.query, module.d_key, head) for head in heads],
        [per_head(module.key, module.d_key, head) for head in heads],
        [per_head(module.value, module.d_value, head // sharing) for head in heads],
        output_maps(module),
        module.output.bias,
        keep,
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
@pytest.mark.parametrize("padded", [False, True])
def test_output_is_the_sum_over_heads(shape, need_weights, padded, keep):
    module = randomise(build(**SHAPES[shape])).double()
    hidden, mask = torch.randn(2, 5, 12, dtype=torch.float64), keep if padded else None
    output = module(hidden, mask, need_weights=need_weights)
    output = output[0] if need_weights else output
    kept = keep if padded else torch.ones_like(keep)
    with torch.no_grad():
        assert_close(output[kept], looped(module, hidden, mask)[kept], 1e-12)  # float64 rounding


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_explicit_and_fused_paths_agree_for_every_preset(preset, padded, biased, keep):
    module = randomise(PRESETS[preset](12, 3, dropout=0.0).attention)
    hidden, bias = torch.randn(2, 5, 12), torch.randn(3, 5, 5) if biased else None
    mask = keep if padded else None
    explicit, _ = module(hidden, mask, bias, need_weights=True)
    assert_close(module(hidden, mask, bias), explicit, 1e-6)


@pytest.mark.parametrize("tokens", [AVERAGED, AVERAGED + 1])
def test_a_shared_value_gives_the_same_where_its_path_changes(tokens):
    module = randomise(PRESETS["shared_value"](12, 3, dropout=0.0).attention)
    hidden, keep = torch.randn(2, tokens, 12), torch.arange(tokens) < torch.tensor([[tokens], [200]])
    assert_close(module(hidden, keep), module(hidden, keep, need_weights=True)[0], 1e-6)


@pytest.mark.parametrize("padded", [False, True])
def test_a_fused_kernel_runs_in_the_standard_layer(padded, keep):
    module, hidden = randomise(PRESETS["standard"](12, 3, dropout=0.0).attention), torch.randn(2, 5, 12)
    mask = keep if padded else None
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):  # anything else would raise
        fused = module(hidden, mask)
    assert_close(fused, module(hidden, mask, need_weights=True)[0], 1e-6)


def copy_to_torch(module, d_head):
    """`nn.MultiheadAttention` with the weights of `module`, narrower queries and keys filled up with zeros."""
    theirs = nn.MultiheadAttention(module.d_model, module.num_heads, batch_first=True)
    weight = torch.zeros(3, module.num_heads, d_head, module.d_model)
    bias = torch.zeros(3, module.num_heads, d_head)
    scale = math.sqrt(d_head / module.d_key)  # theirs divides by sqrt(d_head)
    for head in range(module.num_heads):
        for place, linear, factor in ((0, module.query, scale), (1, module.key, 1.0)):
            head_weight, head_bias = per_head(linear, module.d_key, head)
            weight[place, head, : module.d_key], bias[place, head, : module.d_key] = (
                factor * head_weight,
                factor * head_bias,
            )
        weight[2, head], bias[2, head] = per_head(module.value, d_head, head)
    theirs.in_proj_weight.copy_(weight.flatten(0, 2))
    theirs.in_proj_bias.copy_(bias.flatten())
    theirs.out_proj.load_state_dict(module.output.state_dict())
    return theirs


OUTSIDE = {
    "equal key": {"d_model": 20, "num_heads": 4, "d_key": 5, "d_value": 5},
    "small key": {"d_model": 20, "num_heads": 4, "d_key": 3, "d_value": 5},
    "one summed head": {"d_model": 20, "num_heads": 1, "d_key": 20, "d_value": 20, "merge_heads": "sum"},
}


@pytest.mark.parametrize("case", OUTSIDE)
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_equals_torch_multihead_attention(case, padded, keep):
    module = randomise(build(**OUTSIDE[case]))
    theirs, hidden = copy_to_torch(module, module.d_value), torch.randn(2, 5, 20)
    mask = keep if padded else torch.ones_like(keep)
    output, weights = module(hidden, mask, need_weights=True)
    # average_attn_weights=False keeps heads apart; need_weights takes their slow path, that is, no fast path of eval
    expected, expected_weights = theirs(
        hidden, hidden, hidden, key_padding_mask=~mask, need_weights=True, average_attn_weights=False
    )
    assert_close(output[mask], expected[mask], 1e-5)  # float32, sums in another order
    rows = mask[:, None, :].expand(2, module.num_heads, 5)
    assert_close(weights[rows], expected_weights[rows], 1e-5)


@pytest.mark.parametrize("merge_heads", ["sum", "mean"])
@torch.no_grad()
def test_merged_heads_equal_concat_with_the_output_map_tiled(merge_heads, keep):
    merged, concat = randomise(build(merge_heads=merge_heads)).double(), build().double()
    tile = merged.output.weight.repeat(1, 4) / (4 if merge_heads == "mean" else 1)
    concat.load_state_dict(merged.state_dict() | {"output.weight": tile})
    hidden = torch.randn(2, 5, 12, dtype=torch.float64)
    assert_close(merged(hidden, keep), concat(hidden, keep), 1e-12)


@pytest.mark.parametrize("merge_heads", ["concat", "sum", "mean"])
@torch.no_grad()
def test_shared_value_heads_equal_repeated_value_maps(merge_heads, keep):
    shared = randomise(build(merge_heads=merge_heads, num_value_heads=2)).double()
    separate = build(merge_heads=merge_heads).double()
    weight = shared.value.weight.unflatten(0, (2, 11))[[0, 0, 1, 1]].flatten(0, 1)
    bias = shared.value.bias.unflatten(0, (2, 11))[[0, 0, 1, 1]].flatten()
    separate.load_state_dict(shared.state_dict() | {"value.weight": weight, "value.bias": bias})
    hidden = torch.randn(2, 5, 12, dtype=torch.float64)
    assert_close(shared(hidden, keep), separate(hidden, keep), 1e-12)


@torch.no_grad()
def test_mean_of_one_value_head_is_the_averaged_map_times_its_values(keep):
    module = randomise(build(merge_heads="mean", num_value_heads=1)).double()
    hidden = torch.randn(2, 5, 12, dtype=torch.float64)
    output, weights = module(hidden, keep, need_weights=True)
    value = module.value(hidden)
    assert_close(output, module.output(weights.mean(1) @ value), 1e-12)


@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
@torch.no_grad()
def test_every_text_meets_its_own_mask(need_weights, keep):
    module, hidden = randomise(build()), torch.randn(2, 5, 12)
    together = module(hidden, keep, need_weights=need_weights)
    for text in range(2):
        alone = module(hidden[text : text + 1, keep[text]], need_weights=need_weights)
        if need_weights:
            assert_close(together[1][text][:, keep[text]][:, :, keep[text]], alone[1][0], 1e-6)
        first, second = (output[0] if need_weights else output for output in (together, alone))
        assert_close(first[text][keep[text]], second[0], 1e-6)


@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
def test_nan_at_padding_reaches_nobody(preset, need_weights, keep):
    module = PRESETS[preset](12, 3, dropout=0.0).attention
    clean = torch.randn(2, 5, 12)
    results = []
    for content in (0.0, torch.nan):
        module.zero_grad()
        hidden = clean.masked_fill(~keep[..., None], content).requires_grad_()
        output = module(hidden, keep, need_weights=need_weights)
        (output[0] if need_weights else output)[keep].square().sum().backward()
        results.append([hidden.grad, *(parameter.grad for parameter in module.parameters())])
    for with_nan, without in zip(results[1], results[0], strict=True):
        assert torch.equal(with_nan, without)


# Variance of the merged output at initialisation, with query and key so small that maps are near uniform.


def output_variance(module):
    with torch.no_grad():
        for linear in (module.query, module.key):
            linear.weight.normal_(std=0.02)
        return module(torch.randn(16, 32, 128)).var()


MERGES = [("concat", 1), ("concat", 2), ("sum", 8), ("sum", 2), ("sum", 1), ("mean", 8), ("mean", 2), ("mean", 1)]


@pytest.mark.parametrize(("merge_heads", "num_value_heads"), MERGES)
def test_initial_output_varies_as_concatenations(merge_heads, num_value_heads):
    sizes = {"d_model": 128, "num_heads": 8, "d_key": 16}
    concat = output_variance(build(**sizes, d_value=16))
    d_value = 16 if merge_heads == "concat" else 128
    module = build(**sizes, d_value=d_value, merge_heads=merge_heads, num_value_heads=num_value_heads)
    assert 0.5 < output_variance(module) / concat < 2


def test_initial_output_of_each_preset_varies_as_the_standard_layers(preset):
    standard = output_variance(PRESETS["standard"](128, 8).attention)
    assert 0.5 < output_variance(PRESETS[preset](128, 8).attention) / standard < 2


@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
def test_attention_weights_drop_in_training_alone(need_weights):
    module, hidden = build(dropout=0.5), torch.randn(2, 5, 12)

    def output():
        result = module(hidden, need_weights=need_weights)
        return result[0] if need_weights else result

    assert not torch.allclose(output(), output())
    module.eval()
    assert torch.equal(output(), output())
    still = output()
    module.dropout = 0.0
    assert torch.equal(output(), still)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"merge_heads": "add"}, ["merge_heads", "'add'", "concat", "sum", "mean"]),
        ({"num_value_heads": 3}, ["num_value_heads", "3", "num_heads", "4"]),
        ({"num_value_heads": 8}, ["num_value_heads", "8", "num_heads", "4"]),
    ],
)
def test_a_users_mistake_is_named(options, named):
    with pytest.raises(ValueError, match="heads is") as error:
        build(**options)
    for word in named:
        assert word in str(error.value)


@pytest.mark.parametrize(("d_model", "d_value", "length"), [(12, 11, 12), (12, 4, 5), (12, 12, 12), (12, 30, 12)])
def test_identifiable_length_is_bounded_by_value_size_and_width(d_model, d_value, length):
    assert build(d_model=d_model, d_value=d_value).identifiable_length == length
