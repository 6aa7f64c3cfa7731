"""What every structure that an adapter knows has in common."""

import copy
import dataclasses

import pytest
import torch
from asserting import assert_close
from identiformer.models import record_heads
from identiformer.models.adapters import attention_modules, encoder_layers, heads
from identiformer.models.identifiability import null_space
from small_models import KEEP, STRUCTURES, TEXTS, TRANSFORMERS, run, shared_model, small_model
from torch import nn


def recorded(model, texts=TEXTS, keep=KEEP):
    with record_heads(model) as records:
        logits = run(model, texts, keep)
    return records, logits


@pytest.fixture(params=STRUCTURES)
def model(request):
    """A classifier of each structure in turn."""
    return shared_model(request.param)


def test_every_layer_has_its_attention_module(model):
    assert len(attention_modules(model)) == len(encoder_layers(model)) == 2
    for module, layer in zip(attention_modules(model), encoder_layers(model), strict=True):
        assert module in layer.modules()


@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_recorded_weights_are_the_eager_kernels(name, kernel):
    if not shared_model(name)._supports_sdpa:
        kernel = "eager"
    records, _ = recorded(small_model(name, attn_implementation=kernel))
    with torch.no_grad():
        output = small_model(name, attn_implementation="eager")(TEXTS, KEEP.long(), output_attentions=True)
    tolerance = 1e-6 if name == "ModernBert" else 1e-12  # its softmax is in float32
    for record, expected in zip(records, output.attentions, strict=True):
        for text, length in enumerate(KEEP.sum(1)):
            assert_close(record.weights[text, :, :length], expected[text, :, :length], tolerance)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_recorded_parts_make_up_the_modules_output(name):
    model, outputs = small_model(name), []
    for module in attention_modules(model):
        weight = heads(module).output.weight
        (linear,) = [part for part in module.modules() if getattr(part, "weight", None) is weight]
        linear.register_forward_hook(lambda _, args, output: outputs.append(output))
    records, _ = recorded(model)
    for record, output in zip(records, outputs, strict=True):
        bias = record.heads.output.bias
        expected = (record.weights @ record.value @ record.output_map).sum(1) + (0 if bias is None else bias.detach())
        assert_close(output[KEEP], expected[KEEP], 1e-6 if name == "ModernBert" else 1e-12)


def test_padding_batch_mates_and_order_change_nothing(model):
    records, logits = recorded(model)
    order = torch.tensor([2, 0, 1])
    wider = torch.nn.functional.pad(TEXTS, (0, 4)), torch.nn.functional.pad(KEEP, (0, 4))
    others = [recorded(model, TEXTS[order], KEEP[order]), recorded(model, *wider)]
    for text, length in enumerate(KEEP.sum(1)):
        alone = recorded(model, TEXTS[text : text + 1, :length], None)
        places = [(alone, 0), (others[0], order.tolist().index(text)), (others[1], text)]
        for (found, found_logits), place in places:
            assert_close(found_logits[place], logits[text], 1e-6)
            for record, expected in zip(found, records, strict=True):
                for part in ("query", "key", "value"):
                    mine, theirs = getattr(record, part)[place, :, :length], getattr(expected, part)[text, :, :length]
                    assert_close(mine, theirs, 1e-6)  # ModernBERT's positions are in float32
                assert_close(
                    record.weights[place, :, :length, :length], expected.weights[text, :, :length, :length], 1e-6
                )
                assert not record.weights[place, :, :length, length:].any()


def test_outputs_stay_bit_for_bit(model):
    assert torch.equal(recorded(model)[1], run(model))
    assert not any("forward" in vars(module) for module in model.modules())


def test_half_precision_is_recorded_in_float64_from_its_own_weights(model):
    half = copy.deepcopy(model).bfloat16()
    records, logits = recorded(half)
    assert logits.dtype == torch.bfloat16
    for record in records:
        weight = record.heads.value.weight
        assert weight.dtype == torch.bfloat16
        assert record.value.dtype == record.weights.dtype == torch.float64
        expected = record.hidden.double().masked_fill(~KEEP[..., None], 0) @ weight.detach().double().mT
        expected = expected if record.heads.value.bias is None else expected + record.heads.value.bias.detach().double()
        found = record.value[:, :: record.heads.num_heads // record.heads.num_value_heads]
        assert_close(found.transpose(1, 2).flatten(2), expected, 1e-12)


def test_a_text_of_padding_alone_is_finite_and_alone_so(model):
    keep = KEEP.clone()
    keep[1] = False
    records, logits = recorded(model, TEXTS, keep)
    assert_close(logits[[0, 2]], run(model)[[0, 2]], 1e-6)
    assert all(not record.weights[1].any() for record in records)


def test_nan_at_padding_reaches_no_record(model):
    records, _ = recorded(model)
    for record in records:
        inputs = {name: getattr(record.call, name) for name in ("hidden", "key_hidden", "value_hidden")}
        inputs = {
            name: states.masked_fill(~KEEP[..., None], torch.nan)
            for name, states in inputs.items()
            if states is not None
        }
        poisoned = dataclasses.replace(record, call=record.call._replace(**inputs))
        for part in ("query", "key", "value"):
            kept = KEEP[:, None].expand(-1, record.heads.num_heads, -1)
            assert torch.equal(getattr(poisoned, part)[kept], getattr(record, part)[kept])
        assert torch.equal(poisoned.weights, record.weights)
        spaces = [null_space(each.value, each.output_map, KEEP[:, None]) for each in (poisoned, record)]
        for found, expected in zip(*spaces, strict=True):
            assert torch.equal(found, expected)


# What must not be taken for known.


def test_decoders_and_subclasses_are_not_known():
    from transformers import BertConfig, BertModel
    from transformers.models.bert.modeling_bert import BertAttention

    class Own(BertAttention):
        pass

    config = BertConfig(hidden_size=24, num_attention_heads=3, num_hidden_layers=1, vocab_size=9)
    assert heads(BertAttention(config)) is not None
    assert heads(Own(config)) is None
    decoder = BertConfig(**config.to_dict() | {"is_decoder": True, "add_cross_attention": True})
    with pytest.raises(ValueError, match="BertModel holds no attention module that can be read"):
        attention_modules(BertModel(decoder))


def test_attention_that_is_not_plain_is_not_known():
    assert heads(nn.MultiheadAttention(24, 3)) is not None
    assert heads(nn.MultiheadAttention(24, 3, add_bias_kv=True)) is None
    assert heads(nn.MultiheadAttention(24, 3, add_zero_attn=True)) is None
