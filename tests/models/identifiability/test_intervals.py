from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from identiformer.models.identifiability import attention_intervals
from references.bert_heads import bert_heads
from references.intervals import interval


def random_row(n, d_value, seed=0, sharpness=1.0, zeros=0.0):
    generator = torch.Generator().manual_seed(seed)
    normal = {"generator": generator, "dtype": torch.float64}
    values = torch.randn(n, d_value, **normal)
    masked = torch.rand(n, generator=generator) < zeros
    masked[seed % n] = False
    scores = torch.randn(n, **normal) * sharpness
    return scores.masked_fill(masked, -torch.inf).softmax(-1), values


sizes = {
    "n": st.integers(1, 14),
    "d_value": st.integers(1, 6),
    "sharpness": st.floats(0, 5),
    "zeros": st.floats(0, 0.8),
    "seed": st.integers(0, 999),
}


@settings(deadline=None, max_examples=25)
@given(**sizes)
def test_ends_are_those_of_the_reference_and_attained(n, d_value, sharpness, zeros, seed):
    row, values = random_row(n, d_value, seed, sharpness, zeros)
    found = attention_intervals(row, values)
    for token in range(n):
        ends = interval(row.numpy(), values.numpy(), token)
        for end, weight in zip(ends, (found.lower[token], found.upper[token]), strict=True):
            assert end[token] == pytest.approx(weight.item(), abs=1e-6)
            assert end.min() >= -1e-9
            assert end.sum() == pytest.approx(1)
            np.testing.assert_allclose(end @ values.numpy(), row.numpy() @ values.numpy(), atol=1e-7)


@settings(deadline=None, max_examples=25)
@given(**sizes, tolerance=st.floats(1e-3, 0.5))
def test_ends_under_a_tolerance_are_those_of_the_reference(n, d_value, sharpness, zeros, seed, tolerance):
    row, values = random_row(n, d_value, seed, sharpness, zeros)
    found = attention_intervals(row, values, tolerance=tolerance)
    allowed = tolerance * np.linalg.norm(row.numpy() @ values.numpy()) / d_value**0.5
    for token in range(n):
        low, high = interval(row.numpy(), values.numpy(), token, allowed)
        assert low[token] == pytest.approx(found.lower[token].item(), abs=1e-6)
        assert high[token] == pytest.approx(found.upper[token].item(), abs=1e-6)


@settings(deadline=None, max_examples=40)
@given(**sizes, tolerances=st.tuples(*[st.sampled_from([0.0, 1e-6, 1e-3, 0.1])] * 2).map(sorted))
def test_interval_holds_the_weight_and_grows_with_the_tolerance(n, d_value, sharpness, zeros, seed, tolerances):
    row, values = random_row(n, d_value, seed, sharpness, zeros)
    narrow, wide = (attention_intervals(row, values, tolerance=tolerance) for tolerance in tolerances)
    assert (narrow.lower <= row).all()
    assert (narrow.upper >= row).all()
    assert (wide.lower <= narrow.lower + 1e-7).all()
    assert (wide.upper >= narrow.upper - 1e-7).all()


@settings(deadline=None)
@given(n=st.integers(1, 12), sharpness=st.floats(0, 20), zeros=st.floats(0, 0.8), seed=st.integers(0, 999))
def test_identifiable_row_is_exactly_a_point(n, sharpness, zeros, seed):
    row, values = random_row(n, 12, seed, sharpness, zeros)
    for end in attention_intervals(row, values):
        assert end.equal(row)


def test_intervals_shrink_to_points_as_rows_of_the_values_become_independent():
    row, values = random_row(12, 11)
    widths = []
    for columns in (1, 3, 5, 7, 9, 10, 11):
        found = attention_intervals(row, values[:, :columns])
        widths.append(found.upper - found.lower)
    for wide, narrow in pairwise(widths):
        assert (narrow <= wide + 1e-7).all()
    assert (widths[-2] > 0).any()
    assert (widths[-1] == 0).all()


def test_row_that_its_support_makes_identifiable_is_a_point():
    row, values = random_row(20, 4)
    row = row * (torch.arange(20) % 4 == 0)  # 5 tokens, 4 coordinates and the sum
    row = row / row.sum()
    for end in attention_intervals(row, values):
        assert end.equal(row)


def test_output_map_keeps_the_intervals_of_its_product():
    row, values = random_row(13, 4)
    output_map = torch.randn(4, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = attention_intervals(row, values, output_map)
    for end, expected in zip(found, attention_intervals(row, values @ output_map), strict=True):
        torch.testing.assert_close(end, expected)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("tolerance", [0.0, 0.01])
def test_scale_of_the_values_does_not_matter(scale, tolerance):
    row, values = random_row(13, 4)
    found = attention_intervals(row, values * scale, tolerance=tolerance)
    for end, expected in zip(found, attention_intervals(row, values, tolerance=tolerance), strict=True):
        torch.testing.assert_close(end, expected, atol=1e-7, rtol=0)


@pytest.mark.parametrize("tolerance", [0.0, 0.01])
@pytest.mark.parametrize("values", [torch.ones(5, 2), torch.zeros(5, 2)], ids=["equal tokens", "T = 0"])
def test_weight_that_does_not_show_can_go_anywhere_on_the_support(values, tolerance):
    row = torch.tensor([0.5, 0.25, 0, 0.125, 0.125])
    found = attention_intervals(row, values, tolerance=tolerance)
    assert found.lower.tolist() == [0] * 5
    torch.testing.assert_close(found.upper, torch.tensor([1.0, 1, 0, 1, 1], dtype=torch.float64))


@pytest.mark.parametrize("tolerance", [0.0, 0.01])
def test_one_hot_row_and_single_token_are_points(tolerance):
    for row in (torch.eye(6)[2], torch.ones(1)):
        for end in attention_intervals(row, torch.randn(len(row), 3), tolerance=tolerance):
            assert end.equal(row.double())


def test_weights_too_small_for_the_solver_keep_their_place():
    row, values = random_row(20, 4, sharpness=40)
    found = attention_intervals(row, values)
    assert ((found.lower >= 0) & (found.lower <= row) & (row <= found.upper)).all()
    assert (found.upper <= 1 + 1e-9).all()


@pytest.mark.parametrize("name", ["row_weights", "values"])
def test_non_finite_input_is_refused(name):
    row, values = random_row(4, 2)
    parts = {"row_weights": row, "values": values}
    parts[name][1] = torch.nan
    with pytest.raises(ValueError, match=name):
        attention_intervals(**parts)


def test_negative_tolerance_is_refused():
    with pytest.raises(ValueError, match=r"tolerance is -0\.1"):
        attention_intervals(*random_row(4, 2), tolerance=-0.1)


def test_solver_prints_nothing(capfd):
    attention_intervals(*random_row(9, 2))
    assert capfd.readouterr() == ("", "")


def test_sharp_head_of_a_real_model_stays_sharp_and_opens_with_length():
    """Layer 3, head 0, first row: the largest weight is nearly fixed at 40 tokens, and less so at 128."""
    widths = []
    for length, most in ((40, 0.02), (128, 0.4)):
        heads = bert_heads(length)
        row = heads.weights[3, 0, 0]
        found = attention_intervals(row, heads.values[3, 0], heads.output_map[3, 0])
        top = row.argmax()
        widths.append(found.upper[top] - found.lower[top])
        assert 0 < widths[-1] < most
    assert widths[0] < widths[1]
