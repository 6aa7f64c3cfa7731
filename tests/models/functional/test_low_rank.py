"""Compressed scores against the truncated decomposition of the whole form between whitened inputs."""

import pytest
import torch
from asserting import assert_close
from identiformer.models.functional.low_rank import compress_scores

HEADS, D_KEY, D_MODEL = 3, 6, 10


def maps():
    torch.manual_seed(0)
    return torch.randn(HEADS, D_KEY, D_MODEL + 1).double(), torch.randn(HEADS, D_KEY, D_MODEL).double()


def moments():
    inputs, keys = torch.randn(40, D_MODEL + 1).double(), torch.randn(40, D_MODEL).double()
    return inputs.mT @ inputs / 40, keys.mT @ keys / 40


def root(moment):
    values, vectors = torch.linalg.eigh(moment)
    return vectors * values.sqrt() @ vectors.mT


def form(query, key, size):
    """What the scores are a bilinear form of, the inputs of queries on the left."""
    return query.mT @ key / size**0.5


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_equals_the_truncated_decomposition_of_the_whitened_form(weighted, size):
    query, key = maps()
    left, right = moments() if weighted else (torch.eye(D_MODEL + 1).double(), torch.eye(D_MODEL).double())
    new_query, new_key, error = compress_scores(query, key, size, *((left, right) if weighted else ()))
    assert (new_query.shape, new_key.shape) == ((HEADS, size, D_MODEL + 1), (HEADS, size, D_MODEL))
    whitened = root(left) @ form(query, key, D_KEY) @ root(right)
    u, s, v = torch.linalg.svd(whitened)
    best = u[..., :size] * s[:, None, :size] @ v[:, :size]
    assert_close(root(left) @ form(new_query, new_key, size) @ root(right), best, 1e-10)
    assert_close(error, torch.linalg.norm(whitened - best, dim=(1, 2)) / torch.linalg.norm(whitened, dim=(1, 2)), 1e-10)


def test_the_error_is_that_of_the_scores_themselves():
    query, key = maps()
    inputs, keys = torch.randn(50, D_MODEL + 1).double(), torch.randn(50, D_MODEL).double()
    keys = keys - keys.mean(0)
    moment, covariance = inputs.mT @ inputs / 50, keys.mT @ keys / 50
    new_query, new_key, error = compress_scores(query, key, 3, moment, covariance)
    scores, found = (inputs @ form(*parts) @ keys.mT for parts in ((query, key, D_KEY), (new_query, new_key, 3)))
    relative = (scores - found).square().mean((1, 2)) / scores.square().mean((1, 2))
    assert_close(error, relative.sqrt(), 1e-10)


def test_a_form_of_small_rank_is_kept_exactly():
    query, key = maps()
    query[:, 2:] = 0
    new_query, new_key, error = compress_scores(query, key, 2)
    assert_close(form(new_query, new_key, 2), form(query, key, D_KEY), 1e-12)
    assert error.max() < 1e-12


def test_scores_that_are_zero_have_no_error():
    new_query, new_key, error = compress_scores(*(0 * part for part in maps()), 2)
    assert not torch.cat((new_query.flatten(), new_key.flatten(), error)).any()
