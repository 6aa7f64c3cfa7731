import pytest
import torch
from identiformer.models.functional.masks import keep_mask, zero_padding


@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float32])
def test_keep_is_true_where_the_attention_mask_is_one(dtype):
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert torch.equal(keep_mask(mask.to(dtype)), mask == 1)


def test_a_mask_without_padding_becomes_none():
    assert keep_mask(torch.ones(2, 3)) is None


def test_zero_padding_clears_nan_at_padding_alone_and_in_gradients(keep):
    hidden = torch.randn(2, 5, 12)
    dirty = hidden.masked_fill(~keep[..., None], torch.nan).requires_grad_()
    cleared = zero_padding(dirty, keep)
    assert torch.equal(cleared[keep], hidden[keep])
    assert (cleared[~keep] == 0).all()
    cleared.square().sum().backward()
    assert torch.equal(dirty.grad, 2 * hidden.masked_fill(~keep[..., None], 0.0))


def test_zero_padding_without_a_mask_is_the_identity():
    hidden = torch.randn(2, 5, 12)
    assert zero_padding(hidden, None) is hidden
