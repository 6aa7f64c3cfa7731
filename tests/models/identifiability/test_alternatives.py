import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from identiformer.models.identifiability import alternative_attention
from references.alternatives import dimension
from references.bert_heads import bert_heads


def random_head(n, d_key, d_value, seed=0):
    normal = {"generator": torch.Generator().manual_seed(seed), "dtype": torch.float64}
    return (
        torch.randn(n, d_key, **normal),
        torch.randn(n, d_key, **normal),
        torch.randn(n, d_value, **normal),
    )


def softmax_of(query, key, bias=0.0):
    return (query @ key.T / math.sqrt(query.shape[1]) + bias).softmax(-1)


def relative_errors(found, weights, transformed):
    return ((found - weights) @ transformed).norm(dim=-1) / (weights @ transformed).norm(dim=-1)


@settings(deadline=None, max_examples=40)
@given(n=st.integers(2, 8), d_key=st.integers(1, 4), d_value=st.integers(1, 5), seed=st.integers(0, 999))
def test_dimension_is_that_of_dense_jacobians(n, d_key, d_value, seed):
    head = random_head(n, d_key, d_value, seed)
    expected = dimension(*head)
    assume(dimension(*head, tolerance=1e-5) == expected)  # the rank is clear
    assert alternative_attention(*head, steps=0).dimension == expected


@settings(deadline=None, max_examples=15)
@given(n=st.integers(2, 8), d_key=st.integers(1, 4), d_value=st.integers(1, 4), seed=st.integers(0, 999))
def test_dimension_under_a_mask_is_that_of_dense_jacobians(n, d_key, d_value, seed):
    head = random_head(n, d_key, d_value, seed)
    causal = torch.full((n, n), -torch.inf, dtype=torch.float64).triu(1)
    expected = dimension(*head, causal)
    assume(dimension(*head, causal, tolerance=1e-5) == expected)
    assert alternative_attention(*head, bias=causal, steps=0).dimension == expected


@pytest.mark.parametrize(("n", "d", "expected"), [(9, 4, 16), (10, 3, 18), (5, 4, 0)])
def test_dimension_with_equal_sizes(n, d, expected):
    assert alternative_attention(*random_head(n, d, d), steps=0).dimension == expected == d * (n - 1 - d)


@settings(deadline=None, max_examples=40)
@given(n=st.integers(3, 12), d_key=st.integers(1, 4), d_value=st.integers(1, 6), seed=st.integers(0, 999))
def test_alternatives_are_softmaxes_with_the_same_output(n, d_key, d_value, seed):
    query, key, values = random_head(n, d_key, d_value, seed)
    weights = softmax_of(query, key)
    found = alternative_attention(query, key, values, steps=5)
    torch.testing.assert_close(found.weights, softmax_of(found.query, found.key))
    errors = relative_errors(found.weights, weights, values)
    assert errors.max() < 1e-10
    assert found.total_variation == 0 or found.dimension > 0
    assert found.output_error <= 1e-10
    variation = (found.weights - weights).abs().sum(-1).mean().item() / 2
    assert found.total_variation == pytest.approx(variation, abs=1e-12)


@pytest.mark.parametrize(("n", "d_key", "d_value"), [(9, 4, 4), (9, 4, 2), (12, 3, 4)])
def test_weights_move_where_there_are_alternatives(n, d_key, d_value):
    found = alternative_attention(*random_head(n, d_key, d_value))
    assert found.dimension > 0
    assert found.total_variation > 0.01


@pytest.mark.parametrize("n", [9, 14, 19])
def test_values_twice_as_large_as_keys_leave_none_at_any_length(n):
    query, key, values = random_head(n, 3, 7)
    found = alternative_attention(query, key, values)
    assert (found.total_variation, found.output_error, found.dimension) == (0, 0, 0)
    assert found.query.equal(query)
    assert found.key.equal(key)
    assert found.weights.equal(softmax_of(query, key))


def test_bias_stays_in_the_scores_and_masked_weights_stay_zero():
    query, key, values = random_head(11, 4, 3)
    bias = torch.randn(11, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    bias[2:, 0] = bias[0, 1:] = -torch.inf
    found = alternative_attention(query, key, values, bias=bias)
    weights = softmax_of(query, key, bias)
    torch.testing.assert_close(found.weights, softmax_of(found.query, found.key, bias))
    assert relative_errors(found.weights, weights, values).max() < 1e-10
    assert found.weights[0].equal(weights[0])
    assert (found.weights[2:, 0] == 0).all()
    assert found.total_variation > 0.01


def test_output_map_stands_for_its_product():
    query, key, values = random_head(9, 4, 3)
    output_map = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = alternative_attention(query, key, values, output_map)
    assert found.dimension == alternative_attention(query, key, values @ output_map, steps=0).dimension
    assert relative_errors(found.weights, softmax_of(query, key), values @ output_map).max() < 1e-10


def test_seed_fixes_the_walk():
    head = random_head(9, 3, 3)
    first, again, other = (alternative_attention(*head, steps=3, seed=seed) for seed in (1, 1, 2))
    assert first.weights.equal(again.weights)
    assert not torch.allclose(first.weights, other.weights)


def test_float32_heads_are_walked_in_float64():
    found = alternative_attention(*(part.float() for part in random_head(9, 3, 3)), steps=3)
    assert found.query.dtype == found.weights.dtype == torch.float64
    assert found.output_error < 1e-10


def test_walk_without_a_way_stays():
    """Where no step comes back to the output, the head's own query and key are the answer, never half a step."""
    query, key, values = random_head(9, 3, 3)
    found = alternative_attention(query, key, values, step_size=math.inf)
    assert (found.total_variation, found.output_error) == (0, 0)
    assert found.query.equal(query)
    assert found.dimension > 0


def test_single_token_has_no_alternative():
    found = alternative_attention(*random_head(1, 3, 2))
    assert (found.weights.item(), found.total_variation, found.dimension) == (1, 0, 0)


@pytest.mark.parametrize("same", ["tokens", "values"])
def test_values_that_do_not_show_leave_everything_open(same):
    """Equal tokens cannot be told apart by their keys either, but other keys could."""
    query, key, values = random_head(6, 2, 3)
    if same == "tokens":
        query, key = query[:1].expand(6, -1), key[:1].expand(6, -1)
    values = values[:1].expand(6, -1)
    found = alternative_attention(query, key, values)
    assert found.dimension == dimension(query, key, values) > 0
    assert found.total_variation > 0
    assert alternative_attention(query, key, torch.zeros(6, 3)).dimension == found.dimension


@pytest.mark.parametrize("name", ["query", "key", "values"])
def test_non_finite_input_is_refused(name):
    parts = dict(zip(("query", "key", "values"), random_head(4, 3, 2), strict=True))
    parts[name][1, 1] = torch.nan
    with pytest.raises(ValueError, match=name):
        alternative_attention(**parts)


@pytest.mark.parametrize("length", [24, 32, 33])
def test_short_text_of_a_real_model_has_no_alternative(length):
    """All 12 heads of all 6 layers."""
    heads = bert_heads(length)
    for layer in range(6):
        for head in range(12):
            found = alternative_attention(*(part[layer, head] for part in heads))
            assert (found.total_variation, found.output_error, found.dimension) == (0, 0, 0)


@pytest.mark.parametrize(
    ("length", "layer", "head", "expected"),
    [(34, 0, 0, 32), (34, 2, 0, 32), (36, 3, 7, 96), (40, 5, 3, 224), (40, 2, 0, 224), (64, 3, 0, 992)],
)
def test_longer_text_of_a_real_model_has_one(length, layer, head, expected):
    """One or two heads a length and a few steps; layer 2, head 0 has weights below 1e-7 and barely moves."""
    query, key, values, output_map = (part[layer, head] for part in bert_heads(length))
    found = alternative_attention(query, key, values, output_map, steps=3)
    weights = softmax_of(query, key)
    assert found.dimension == expected == 32 * (length - 33)
    assert found.output_error < 1e-10
    assert relative_errors(found.weights, weights, values @ output_map).max() < 1e-10
    assert found.total_variation > 1e-5
