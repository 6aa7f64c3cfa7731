import pytest
import torch
from asserting import assert_close
from identiformer.models.functional.pooling import POOLING, first_pool, mean_pool


def test_mean_is_over_kept_tokens(keep):
    hidden = torch.randn(2, 5, 12)
    expected = torch.stack([hidden[0, [0, 1, 3]].mean(0), hidden[1].mean(0)])
    assert_close(mean_pool(hidden, keep), expected, 1e-6)


@pytest.mark.parametrize("padding", [0, 1, 3])
def test_first_is_the_first_kept_token_wherever_padding_stands(padding):
    hidden = torch.randn(2, 5, 12)
    keep = torch.ones(2, 5, dtype=torch.bool)
    keep[0, :padding] = False
    keep[1, 2:] = False
    assert torch.equal(first_pool(hidden, keep), hidden[[0, 1], [padding, 0]])


@pytest.mark.parametrize("name", sorted(POOLING))
def test_no_mask_means_that_everything_is_kept(name):
    hidden = torch.randn(2, 5, 12)
    assert_close(POOLING[name](hidden, None), POOLING[name](hidden, torch.ones(2, 5, dtype=torch.bool)), 1e-6)


@pytest.mark.parametrize("name", sorted(POOLING))
def test_a_text_without_tokens_gives_zero(name):
    hidden = torch.full((2, 5, 12), torch.nan)
    pooled = POOLING[name](hidden, torch.zeros(2, 5, dtype=torch.bool))
    assert torch.equal(pooled, torch.zeros(2, 12))
