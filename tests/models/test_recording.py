import copy

import pytest
import torch
from asserting import assert_close, randomise
from identiformer.models import (
    IdentiformerForSequenceClassification,
    IdentiformerModel,
    MultiHeadAttention,
    record_heads,
)
from identiformer.models.identifiability import null_space
from identiformer.models.layers import PRESETS
from torch import nn

TEXTS = torch.tensor([[7, 3, 11, 2, 19], [5, 23, 0, 0, 0]])


def classifier(config):
    return randomise(IdentiformerForSequenceClassification(config)).eval()


def attention(num_value_heads=4, merge_heads="concat", dropout=0.0):
    module = MultiHeadAttention(
        d_model=12,
        num_heads=4,
        d_key=7,
        d_value=11,
        num_value_heads=num_value_heads,
        merge_heads=merge_heads,
        dropout=dropout,
    )
    return randomise(module)


def recorded(model, *args, **kwargs):
    with torch.no_grad(), record_heads(model) as records:
        output = model(*args, **kwargs)
    return records, output


# What is recorded.


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_weights_equal_those_of_the_model(make_config, kernel):
    records, output = recorded(classifier(make_config(attn_implementation=kernel)), TEXTS, output_attentions=True)
    for record, weights in zip(records, output.attentions, strict=True):
        kept = record.keep[:, None, :].expand(2, 3, 5)
        assert_close(weights[kept], record.weights[kept], 1e-6)


MERGES = [("concat", 4), ("concat", 2), ("concat", 1), ("sum", 4), ("sum", 2), ("mean", 4), ("mean", 1)]


@pytest.mark.parametrize(("merge_heads", "num_value_heads"), MERGES)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_the_recorded_parts_give_the_modules_output(merge_heads, num_value_heads, padded, biased, keep):
    module = attention(num_value_heads, merge_heads)
    hidden, bias = torch.randn(2, 5, 12), torch.randn(4, 5, 5) if biased else None
    (record,), output = recorded(module, hidden, keep if padded else None, bias=bias)
    heads = record.weights @ record.value @ record.output_map
    expected = heads.sum(1) / (4 if record.merge_heads == "mean" else 1) + module.output.bias.detach()
    assert_close(output, expected, 1e-5)


def test_sizes_dtypes_and_numbers_of_what_is_recorded(keep):
    module, hidden = attention(2, "sum"), torch.randn(2, 5, 12)
    (record,), _ = recorded(module, hidden, keep)
    assert record.query.shape == record.key.shape == (2, 4, 5, 7)
    assert record.value.shape == (2, 4, 5, 11)
    assert record.output_map.shape == (4, 11, 12)
    assert record.weights.shape == (2, 4, 5, 5)
    parts = (record.query, record.key, record.value, record.output_map, record.weights)
    assert {part.dtype for part in parts} == {torch.float64}
    assert not any(part.requires_grad for part in parts)
    assert (record.layer, record.merge_heads) == (0, "sum")
    assert torch.equal(record.hidden, hidden)
    assert torch.equal(record.keep, keep)
    assert record.bias is None


def test_queries_keys_and_values_are_the_modules_own():
    module, hidden = attention(2).double(), torch.randn(2, 5, 12, dtype=torch.float64)
    (record,), _ = recorded(module, hidden)
    with torch.no_grad():
        for head in range(4):
            place, shared = slice(7 * head, 7 * (head + 1)), slice(11 * (head // 2), 11 * (head // 2 + 1))
            assert_close(record.query[:, head], module.query(hidden)[..., place], 1e-13)
            assert_close(record.key[:, head], module.key(hidden)[..., place], 1e-13)
            assert_close(record.value[:, head], module.value(hidden)[..., shared], 1e-13)
            columns = module.output.weight[:, 11 * head : 11 * (head + 1)]
            assert torch.equal(record.output_map[head], columns.T)


def test_nan_at_padding_is_recorded_as_nothing(keep):
    hidden = torch.randn(2, 5, 12)
    clean, dirty = (hidden.masked_fill(~keep[..., None], content) for content in (0.0, torch.nan))
    module = attention()
    (first,), _ = recorded(module, clean, keep)
    (second,), _ = recorded(module, dirty, keep)
    assert torch.equal(first.weights, second.weights)
    assert torch.equal(first.value, second.value)


def test_dropout_is_not_recorded():
    module, hidden = attention(dropout=0.5), torch.randn(2, 5, 12)
    weights = [recorded(module.train(), hidden)[0][0].weights for _ in range(2)]
    assert torch.equal(*weights)
    assert_close(weights[0].sum(-1), torch.ones(2, 4, 5), 1e-12)


# Order and selection.


def test_layers_come_in_order_once_per_call(make_config):
    model = classifier(make_config(num_layers=3))
    with torch.no_grad(), record_heads(model) as records:
        model(TEXTS)
        model(TEXTS[:1])
    assert [record.layer for record in records] == [0, 1, 2, 0, 1, 2]
    assert [len(record.hidden) for record in records] == [2, 2, 2, 1, 1, 1]


@pytest.mark.parametrize(
    ("layers", "expected"), [([1], [1]), ([2, 0], [0, 2]), ([1, 1], [1]), (range(3), [0, 1, 2]), ([], [])]
)
def test_asked_layers_alone_are_recorded(config_of, layers, expected):
    model = classifier(config_of("standard", num_layers=3))
    with torch.no_grad(), record_heads(model, layers=layers) as records:
        model(TEXTS)
    assert [record.layer for record in records] == expected


def test_a_chosen_layer_holds_what_it_holds_among_all(make_config):
    model = classifier(make_config(num_layers=3))
    all_records, _ = recorded(model, TEXTS)
    with torch.no_grad(), record_heads(model, layers=[2]) as records:
        model(TEXTS)
    assert torch.equal(records[0].weights, all_records[2].weights)
    assert torch.equal(records[0].query, all_records[2].query)


@pytest.mark.parametrize("layer", [-1, 2, 7])
def test_a_layer_that_is_not_there_is_named(make_config, layer):
    with (
        pytest.raises(ValueError, match=f"There is no layer {layer}: the model has layers 0 to 1"),
        record_heads(classifier(make_config()), layers=[0, layer]),
    ):
        pass


def test_a_model_without_known_attention_says_what_is_known():
    with pytest.raises(ValueError, match=r"Known are: .*identiformer"), record_heads(nn.Linear(3, 4)):
        pass


def test_selecting_texts_equals_running_them_alone(make_config):
    model = classifier(make_config())
    records, _ = recorded(model, TEXTS)
    chosen = records[1].select(torch.tensor([1]))
    (_, alone), _ = recorded(model, TEXTS[1:])
    for name in ("query", "key", "value", "weights"):
        assert_close(getattr(chosen, name), getattr(alone, name), 1e-5)
    assert torch.equal(chosen.keep, records[1].keep[1:])
    assert torch.equal(chosen.output_map, records[1].output_map)


BIASES = [(2, 4, 5, 5), (2, 1, 1, 5), (1, 4, 5, 5), (4, 5, 5), (5, 5)]


@pytest.mark.parametrize("shape", BIASES)
def test_selecting_texts_selects_their_bias_and_mask(shape, keep):
    (record,), _ = recorded(attention(), torch.randn(2, 5, 12), keep, torch.randn(shape))
    for texts in ([1], [1, 0], [0, 0, 1]):
        assert_close(record.select(torch.tensor(texts)).weights, record.weights[texts], 1e-13)


# The model is left alone.


def wrapped(model):
    return sum("forward" in vars(module) for module in model.modules())


def test_modules_are_as_before_after_the_context(make_config):
    model = classifier(make_config())
    with record_heads(model) as records:
        assert wrapped(model) == 2
    model(TEXTS)
    assert (wrapped(model), records) == (0, [])


def test_modules_are_as_before_after_an_exception(make_config):
    model = classifier(make_config())
    with pytest.raises(ValueError, match="max_length"), record_heads(model):
        model(torch.ones(2, 17, dtype=torch.long))
    assert wrapped(model) == 0


def test_a_forward_that_somebody_set_before_is_set_again(config_of):
    model, calls = classifier(config_of("standard")), []
    module = model.encoder.layers[0].attention
    plain = module.forward
    module.forward = own = lambda *args, **kwargs: calls.append(1) or plain(*args, **kwargs)
    with record_heads(model) as outer, record_heads(model) as inner:
        model(TEXTS)
    assert module.forward is own
    assert (len(outer), len(inner), calls) == (2, 2, [1])


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("training", [False, True])
def test_outputs_mode_dtype_and_kernel_stay(make_config, kernel, training):
    config = make_config(attn_implementation=kernel, dropout=0.3 if training else 0.0)
    model = classifier(config).train(training)
    results = []
    for recording in (False, True):
        torch.manual_seed(3)
        if recording:
            with record_heads(model) as records:
                results.append(model(TEXTS))
            assert all(record.weights.isfinite().all() for record in records)
        else:
            results.append(model(TEXTS))
    assert torch.equal(results[0].logits, results[1].logits)
    assert results[1].attentions is None
    assert all(module.training is training for module in model.modules())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.config._attn_implementation == kernel


def test_the_fused_kernel_runs_while_recording(make_config, monkeypatch):
    calls, fused = [], nn.functional.scaled_dot_product_attention
    monkeypatch.setattr("identiformer.models.layers.attention.AVERAGED", 0)
    monkeypatch.setattr(
        nn.functional, "scaled_dot_product_attention", lambda *args, **kw: calls.append(1) or fused(*args, **kw)
    )
    recorded(classifier(make_config()), TEXTS)
    assert len(calls) == 2


def test_gradients_flow_as_without_recording(make_config):
    model, gradients = classifier(make_config()), []
    for layers in ([], None):
        model.zero_grad()
        with record_heads(model, layers=layers) as records:
            model(TEXTS).logits.square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))
    assert not records[0].hidden.requires_grad


# Changes after recording.


@pytest.mark.parametrize("part", ["query", "key", "value"])
def test_reading_after_a_step_says_that_the_model_changed(part, config_of):
    model = classifier(config_of("standard"))
    records, _ = recorded(model, TEXTS)
    before = records[0].weights
    with torch.no_grad():
        getattr(model.encoder.layers[0].attention, part).weight.add_(1.0)
    for name in ("query", "key", "value", "weights"):
        with pytest.raises(RuntimeError, match="Layer 0: the model changed"):
            getattr(records[0], name)
    assert records[1].weights.shape == before.shape  # the other layer did not change


def test_reading_the_output_map_after_a_step_says_that_the_model_changed(config_of):
    model = classifier(config_of("standard"))
    records, _ = recorded(model, TEXTS)
    with torch.no_grad():
        model.encoder.layers[1].attention.output.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="Layer 1: the model changed"):
        _ = records[1].output_map


# Precision.


def ranks(model, inputs):
    records, _ = recorded(model, inputs)
    found = [null_space(r.value, r.output_map, None if r.keep is None else r.keep[:, None]) for r in records]
    return [torch.stack(each[:5]).tolist() for each in found]


def test_a_model_in_bfloat16_reports_the_ranks_of_its_float32_copy(preset, config_of):
    sizes = {"d_model": 64, "num_heads": 4, "d_key": None, "d_value": None, "max_length": 48, "d_feedforward": 31}
    if PRESETS[preset](64, 4).attention.merge_heads != "concat":
        sizes["d_value"] = 64
    half = IdentiformerForSequenceClassification(config_of(preset, **sizes)).bfloat16().eval()
    full = copy.deepcopy(half).float()
    inputs = torch.randint(1, 29, (2, 40))
    inputs[1, 23:] = 0
    assert half(inputs).logits.dtype == torch.bfloat16
    assert ranks(half, inputs) == ranks(full, inputs)
    if preset == "standard":  # a head of 16 values
        assert torch.tensor(ranks(half, inputs))[:, 1].unique().tolist() == [16]


def test_autocast_does_not_reach_what_is_recorded(make_config):
    model = classifier(make_config())
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), record_heads(model) as records:
        model(TEXTS)
        inside = [(record.weights, record.value) for record in records]
    for record, (weights, value) in zip(records, inside, strict=True):
        assert weights.dtype == value.dtype == torch.float64
        assert torch.equal(record.weights, weights)
        assert_close(weights.sum(-1), record.keep.any(-1)[:, None, None].expand(2, 3, 5).double(), 1e-12)


@pytest.mark.parametrize("built_inside", [False, True])
def test_recording_works_under_inference_mode(make_config, built_inside):
    model = classifier(make_config())
    expected = [record.weights for record in recorded(model, TEXTS)[0]]
    with torch.inference_mode():
        if built_inside:
            model = copy.deepcopy(model)
        with record_heads(model) as records:
            model(TEXTS)
        inside = [record.weights for record in records]
    for mine, first, record in zip(inside, expected, records, strict=True):
        assert torch.equal(mine, first)
        assert torch.equal(record.weights, first)


def test_keep_is_none_where_nothing_is_padded(make_config):
    records, _ = recorded(randomise(IdentiformerModel(make_config())).eval(), TEXTS[:1])
    assert [record.keep for record in records] == [None, None]
