"""`nn.MultiheadAttention` and the kernel that `nn.TransformerEncoder` runs in evaluation."""

import pytest
import torch
from asserting import assert_close, randomise
from identiformer.models import record_heads
from small_models import KEEP, TEXTS, TorchClassifier
from torch import nn


def attention(**options):
    torch.manual_seed(0)
    return randomise(nn.MultiheadAttention(24, 4, **options)).double().eval()


def inputs(module, *sizes):
    drawn = [torch.randn(3, 9, size, dtype=torch.float64) for size in sizes]
    return drawn if module.batch_first else [tensor.transpose(0, 1) for tensor in drawn]


def compare(module, query, key, value, **masks):
    """Weights and output of the module itself against what was recorded, for kept tokens."""
    with torch.no_grad(), record_heads(module) as records:
        output, weights = module(query, key, value, average_attn_weights=False, **masks)
    (record,) = records
    merged = (record.weights @ record.value @ record.output_map).sum(1)
    merged = merged + (0 if module.out_proj.bias is None else module.out_proj.bias.detach())
    output = output if module.batch_first or output.ndim == 2 else output.transpose(0, 1)
    kept = KEEP if "key_padding_mask" in masks else torch.ones(merged.shape[:2], dtype=torch.bool)
    assert_close(record.weights.transpose(1, 2)[kept], weights.view(record.weights.shape).transpose(1, 2)[kept], 1e-12)
    assert_close(merged[kept], output.view(merged.shape)[kept], 1e-12)
    return record


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_packed_weights(batch_first, bias):
    module = attention(batch_first=batch_first, bias=bias)
    (hidden,) = inputs(module, 24)
    record = compare(module, hidden, hidden, hidden)
    assert (record.keep, record.bias, record.call.key_hidden) == (None, None, None)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_unpacked_weights_with_keys_and_values_of_other_widths(batch_first, bias):
    module = attention(batch_first=batch_first, bias=bias, kdim=10, vdim=14)
    assert module.in_proj_weight is None
    record = compare(module, *inputs(module, 24, 10, 14))
    assert record.select(torch.tensor([1])).value.shape == (1, 4, 9, 6)


def test_a_text_without_a_batch():
    hidden = torch.randn(9, 24, dtype=torch.float64)
    compare(attention(), hidden, hidden, hidden)


MASKS = {
    "padding": {"key_padding_mask": ~KEEP},
    "padding as numbers": {"key_padding_mask": torch.zeros(3, 9).double().masked_fill(~KEEP, -torch.inf)},
    "causal": {"attn_mask": torch.ones(9, 9).triu(1).bool()},
    "causal and padding": {"attn_mask": torch.ones(9, 9).triu(1).bool(), "key_padding_mask": ~KEEP},
    "numbers": {"attn_mask": torch.linspace(-2, 2, 81).view(9, 9).double()},
    "per head": {"attn_mask": torch.linspace(-2, 2, 12 * 81).view(12, 9, 9).double()},
}


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_masks(masks, batch_first):
    module = attention(batch_first=batch_first)
    (hidden,) = inputs(module, 24)
    record = compare(module, hidden, hidden, hidden, **masks)
    padded = "key_padding_mask" in masks
    assert torch.equal(record.keep, KEEP) if padded else record.keep is None
    assert (record.bias is None) == ("attn_mask" not in masks)


def test_attention_to_another_text_is_refused():
    module = attention(batch_first=True)
    with pytest.raises(ValueError, match="only self-attention"), record_heads(module):
        module(torch.randn(3, 9, 24).double(), *[torch.randn(3, 5, 24).double()] * 2)


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_encoders_evaluation_kernel_still_runs(norm_first, recwarn):
    torch.manual_seed(0)
    model = randomise(TorchClassifier(norm_first=norm_first, dropout=0.0), std=0.2).double()
    with record_heads(model) as slow:
        model(TEXTS, KEEP)
    model.eval()
    states = []
    model.encoder.register_forward_hook(lambda *arguments: states.append(arguments[-1]))
    with torch.no_grad(), record_heads(model) as fast:
        model(TEXTS, KEEP)
        model.encoder(model.embedding(TEXTS))
    if not norm_first:  # padding comes back as 0 only where the encoder cut it away
        assert not states[0][~KEEP].any()
    for mine, expected in zip(fast, slow, strict=False):
        assert torch.equal(mine.keep, KEEP)
        assert_close(mine.weights[0], expected.weights[0], 1e-12)
        assert_close(mine.value[1][:, :6], expected.value[1][:, :6], 1e-12)
    assert [record.keep for record in fast[2:]] == [None, None]


def test_a_layer_that_does_something_else_is_recorded_by_its_attention():
    class Own(nn.TransformerEncoderLayer):
        def forward(self, src, src_mask=None, src_key_padding_mask=None, is_causal=False):
            return self._sa_block(2 * src, src_mask, src_key_padding_mask)

    layer, hidden = Own(24, 4, batch_first=True).eval(), torch.randn(1, 9, 24)
    with torch.no_grad(), record_heads(layer) as records:
        layer(hidden)
    assert_close(records[0].hidden, 2 * hidden, 1e-7)
