import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from identiformer.models.identifiability import attention_intervals, attention_slack
from references.bert_heads import bert_heads
from references.intervals import slack


def random_head(n, d_value, seed=0, sharpness=1.0, zeros=0.0, batch=()):
    generator = torch.Generator().manual_seed(seed)
    normal = {"generator": generator, "dtype": torch.float64}
    values = torch.randn(*batch, n, d_value, **normal)
    scores = torch.randn(*batch, n, n, **normal) * sharpness
    masked = (torch.rand(*batch, n, n, generator=generator) < zeros) & ~torch.eye(n, dtype=torch.bool)
    return scores.masked_fill(masked, -torch.inf).softmax(-1), values


sizes = {
    "n": st.integers(1, 14),
    "d_value": st.integers(1, 6),
    "zeros": st.floats(0, 0.8),
    "seed": st.integers(0, 999),
}


@settings(deadline=None, max_examples=40)
@given(**sizes, sharpness=st.floats(0, 12))
def test_slack_lies_inside_the_interval_and_holds_the_weight(n, d_value, zeros, seed, sharpness):
    weights, values = random_head(n, d_value, seed, sharpness, zeros)
    found = attention_slack(weights, values, rows=torch.tensor([0, n - 1]))
    for place, row in enumerate((0, n - 1)):
        exact = attention_intervals(weights[row], values)
        assert (found.lower[place] >= exact.lower - 1e-7).all()
        assert (found.upper[place] <= exact.upper + 1e-7).all()
        assert (found.lower[place] <= weights[row]).all()
        assert (found.upper[place] >= weights[row]).all()


@settings(deadline=None, max_examples=40)
@given(**sizes)
def test_ends_are_reached_by_distributions_with_the_same_output(n, d_value, zeros, seed):
    weights, values = random_head(n, d_value, seed, zeros=zeros)
    found = attention_slack(weights, values, rows=torch.tensor([0]))
    row, transformed = weights[0].numpy(), values.numpy()
    for token in range(n):
        ends = slack(row, transformed, token)
        for end, weight in zip(ends, (found.lower[0, token], found.upper[0, token]), strict=True):
            assert end[token] == pytest.approx(weight.item(), abs=1e-7)
            assert end.min() >= -1e-12
            assert end.sum() == pytest.approx(1)
            np.testing.assert_allclose(end @ transformed, row @ transformed, atol=1e-9)


@settings(deadline=None)
@given(n=st.integers(1, 12), sharpness=st.floats(0, 20), zeros=st.floats(0, 0.8), seed=st.integers(0, 999))
def test_identifiable_row_is_a_point(n, sharpness, zeros, seed):
    weights, values = random_head(n, 12, seed, sharpness, zeros)
    found = attention_slack(weights, values)
    torch.testing.assert_close(found.lower, weights, atol=1e-8, rtol=0)
    torch.testing.assert_close(found.upper, weights, atol=1e-8, rtol=0)


def test_row_that_its_support_makes_identifiable_is_a_point():
    weights, values = random_head(20, 4)
    weights = weights * (torch.arange(20) % 4 == 0)  # 5 tokens, 4 coordinates and the sum
    weights = weights / weights.sum(-1, keepdim=True)
    found = attention_slack(weights, values)
    torch.testing.assert_close(found.lower, weights, atol=1e-9, rtol=0)
    torch.testing.assert_close(found.upper, weights, atol=1e-9, rtol=0)


def test_batches_rows_output_map_and_padding_change_nothing():
    weights, values = random_head(11, 3, batch=(2, 3))
    output_map = torch.randn(3, 3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    keep = torch.tensor([[True] * 11, [True] * 8 + [False] * 3])[:, None]
    weights[1, ..., 8:] = 0
    weights /= weights.sum(-1, keepdim=True)
    weights[1, :, 8:], values[1, :, 8:] = torch.nan, torch.inf
    found = attention_slack(weights, values, output_map, keep, torch.tensor([9, 2]))
    for text, length in ((0, 11), (1, 8)):
        for head in range(3):
            raw = weights[text, head, :length, :length]
            alone = attention_slack(raw, values[text, head, :length] @ output_map[head])
            for end, expected in zip(found, alone, strict=True):
                torch.testing.assert_close(end[text, head, 1, :length], expected[2])
                assert (end[text, head, 1, length:] == 0).all()
                assert text == 0 or (end[text, head, 0] == 0).all()


def test_rows_that_cannot_move_are_points():
    values = random_head(6, 2)[1]
    for weights in (torch.eye(6, dtype=torch.float64), torch.eye(6, dtype=torch.float64) * (1 - 1e-17)):
        assert attention_slack(weights, values).lower.equal(weights)
        assert attention_slack(weights, values).upper.equal(weights)


def test_rounding_does_not_free_a_row_with_all_but_all_weight_on_one_token():
    """Weights of 1e-17 and less are lost in the projection: what cannot be certified is a point."""
    weights, values = random_head(12, 3, sharpness=40)
    found = attention_slack(weights, values)
    for row in range(12):
        exact = attention_intervals(weights[row], values)
        assert (found.lower[row] >= exact.lower - 1e-7).all()
        assert (found.upper[row] <= exact.upper + 1e-7).all()


@pytest.mark.parametrize("values", [torch.ones(5, 2), torch.zeros(5, 2)], ids=["equal tokens", "T = 0"])
def test_weight_that_does_not_show_moves_until_another_is_used_up(values):
    """With `G = I - a a^T / |a|^2` a token can lose everything, and gains until the largest other weight is 0."""
    weights = random_head(5, 2)[0]
    found = attention_slack(weights, values)
    assert (found.lower.abs() < 1e-12).all()
    others = weights[:, None, :].masked_fill(torch.eye(5, dtype=torch.bool), 0)  # (row, token, other)
    expected = weights + others.square().sum(-1) / others.amax(-1)
    torch.testing.assert_close(found.upper, expected)


def test_single_token_is_a_point():
    assert [end.item() for end in attention_slack(torch.ones(1, 1), torch.ones(1, 3))] == [1, 1]


@pytest.mark.parametrize("name", ["weights", "values"])
def test_non_finite_input_names_its_place(name):
    weights, values = random_head(4, 2, batch=(2, 3))
    parts = {"weights": weights, "values": values}
    parts[name][1, 2, 0, 1] = torch.inf
    with pytest.raises(ValueError, match=rf"{name}.*\(1, 2\)"):
        attention_slack(**parts)


@pytest.mark.parametrize(("length", "least", "most"), [(40, 0.4, 0.8), (128, 0.08, 0.65)])
def test_share_of_the_interval_on_a_real_model(length, least, most):
    """Largest weight of the first row, one head of each of 3 layers."""
    heads = bert_heads(length)
    shares = []
    for layer in (0, 3, 5):
        weights, values = heads.weights[layer, 1], heads.values[layer, 1] @ heads.output_map[layer, 1]
        top = weights[0].argmax()
        found = attention_slack(weights, values, rows=torch.tensor([0]))
        exact = attention_intervals(weights[0], values)
        shares.append((found.upper - found.lower)[0, top] / (exact.upper - exact.lower)[top])
    assert least <= min(shares) <= max(shares) <= most
