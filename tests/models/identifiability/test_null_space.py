import math

import numpy as np
import pytest
import torch
from asserting import assert_close
from hypothesis import given
from hypothesis import strategies as st
from identiformer.models.identifiability import null_space
from references import null_space as reference

INTEGERS = ("length", "rank", "rank_with_ones", "nullity", "simplex_nullity")
TABLE = {64: (0, 0), 65: (1, 0), 66: (2, 1), 128: (64, 63), 256: (192, 191)}  # Gaussian values, d_value 64
FLOAT64_EPSILON = torch.finfo(torch.float64).eps


def gaussian(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def of_rank(rank, rows, columns, seed=0):
    """A matrix of a known rank with singular values from 1 to 2."""
    left = torch.linalg.qr(gaussian(rows, rank, seed=seed)).Q
    right = torch.linalg.qr(gaussian(columns, rank, seed=seed + 1)).Q
    return left @ torch.diag(torch.linspace(1, 2, rank, dtype=torch.float64)) @ right.T


def integers(found):
    return {name: getattr(found, name).tolist() for name in INTEGERS}


def assert_equals_reference(found, expected):
    assert {name: getattr(found, name).item() for name in INTEGERS} == {
        name: getattr(expected, name) for name in INTEGERS
    }
    assert found.margin.item() == pytest.approx(expected.margin, rel=1e-6, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("length", TABLE)
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gaussian_values_have_the_nullities_of_the_table_at_every_scale(length, scale, dtype):
    found = null_space(scale * gaussian(length, 64, dtype=dtype))
    assert (found.nullity.item(), found.simplex_nullity.item()) == TABLE[length]
    assert found.identifiable.item() == (TABLE[length][1] == 0)


def test_margin_does_not_depend_on_the_scale():
    margins = [null_space(scale * gaussian(40, 64)).margin.item() for scale in (1.0, 1e-6, 1e6)]
    assert margins[1:] == pytest.approx([margins[0]] * 2, rel=1e-9)


@given(rank=st.integers(1, 9), n=st.integers(9, 23), d_value=st.integers(9, 17), seed=st.integers(0, 999))
def test_a_known_rank_comes_back(rank, n, d_value, seed):
    found = null_space(of_rank(rank, n, d_value, seed))
    assert found.rank.item() == rank
    assert found.nullity.item() == n - rank


@given(rank=st.integers(1, 9), n=st.integers(11, 23), seed=st.integers(0, 999))
def test_ones_add_to_the_rank_unless_they_lie_within(rank, n, seed):
    outside = of_rank(rank, n, 13, seed)
    inside = outside - outside.mean(0) + 1  # all its columns are zero-sum ones plus the ones vector
    assert null_space(outside).rank_with_ones.item() == rank + 1
    found = null_space(inside)
    assert found.rank_with_ones.item() == found.rank.item() == rank + 1


def test_three_equal_tokens_of_ten_leave_two_dimensions():
    values = gaussian(10, 31)
    values[4] = values[7] = values[2]
    found = null_space(values)
    assert (found.nullity.item(), found.simplex_nullity.item()) == (2, 2)
    assert not found.identifiable
    assert found.margin < 1e-12


@given(
    n=st.integers(1, 14),
    d_value=st.integers(1, 11),
    d_model=st.integers(1, 13),
    mapped=st.booleans(),
    seed=st.integers(0, 999),
)
def test_equals_the_reference_twin(n, d_value, d_model, mapped, seed):
    values, output_map = gaussian(n, d_value, seed=seed), gaussian(d_value, d_model, seed=seed + 1) if mapped else None
    keep = gaussian(n, seed=seed + 2) > -0.5
    keep[n // 2] = False
    assert_equals_reference(null_space(values, output_map, keep), reference.null_space(values, output_map, keep))


@given(n=st.integers(2, 20), d_value=st.integers(1, 12), shrink=st.integers(-9, 0), seed=st.integers(0, 999))
def test_identifiable_is_margin_above_the_tolerance(n, d_value, shrink, seed):
    values = gaussian(n, d_value, seed=seed)
    values[0] = values[-1] + 10.0**shrink * (values[0] - values[-1])  # two tokens nearly alike
    values += 10.0 ** (seed % 9)  # and a part that all tokens share
    found = null_space(values)
    assert found.identifiable.item() == (found.margin.item() > reference.default_rtol(n, d_value))


def test_margin_is_the_least_output_change_of_a_unit_shift():
    values, output_map = gaussian(9, 11), gaussian(11, 12, seed=1)
    matrix = values @ output_map
    shifts = torch.randn(2000, 9, dtype=torch.float64)
    shifts = torch.nn.functional.normalize(shifts - shifts.mean(-1, keepdim=True), dim=-1)
    changes = (shifts @ matrix).norm(dim=-1) / torch.linalg.matrix_norm(matrix, 2)
    margin = null_space(values, output_map).margin
    assert (changes >= margin * (1 - 1e-12)).all()
    assert changes.min() < 3 * margin  # 2,000 shifts in 8 dimensions come near the least one


def test_output_map_equals_the_mapped_values_given_directly():
    values, output_map = gaussian(2, 3, 9, 11), gaussian(3, 11, 12, seed=1)
    apart, together = null_space(values, output_map), null_space(values @ output_map)
    assert integers(apart) == integers(together)
    assert_close(apart.margin, together.margin, 1e-9)


@pytest.mark.parametrize("rank", [1, 5, 10])
def test_a_narrow_output_map_bounds_the_rank(rank):
    found = null_space(gaussian(19, 11), of_rank(rank, 11, 12))
    assert (found.rank.item(), found.rank_with_ones.item()) == (rank, rank + 1)


# Texts of a batch.


def test_a_batch_with_padding_equals_each_text_alone():
    values, output_map = gaussian(4, 3, 12, 5), gaussian(3, 5, 7, seed=1)
    keep = gaussian(4, 12, seed=2) > 0
    keep[0] = True
    together = null_space(values, output_map, keep[:, None])
    for text in range(4):
        alone = null_space(values[text][:, keep[text]], output_map)
        for name in INTEGERS:
            assert torch.equal(getattr(together, name)[text], getattr(alone, name))
        assert_close(together.margin[text], alone.margin, 1e-9)


def test_padding_is_left_out_before_anything_is_decomposed():
    values = torch.cat([gaussian(10, 31), torch.full((30, 31), 1e9)])
    found = null_space(values, keep=torch.arange(40) < 10)
    assert (found.length.item(), found.nullity.item()) == (10, 0)


def test_nan_at_padding_changes_nothing():
    keep = torch.tensor([[True, False, True, True], [True] * 4])
    values, output_map = gaussian(2, 4, 11), gaussian(11, 12, seed=1)
    dirty = values.masked_fill(~keep[..., None], torch.nan)
    for before, after in zip(null_space(values, output_map, keep), null_space(dirty, output_map, keep), strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_number_that_is_not_finite_is_refused_with_its_leading_index(bad, mapped):
    values = gaussian(2, 3, 5, 11)
    values[1, 2, 4, 0] = bad
    with pytest.raises(ValueError, match=r"values .*not finite at index \(1, 2\)"):
        null_space(values, gaussian(11, 12) if mapped else None)


# Conventions.


def test_a_text_of_no_tokens_counts_nothing_and_is_not_identifiable():
    found = null_space(gaussian(3, 5, 11), keep=torch.zeros(3, 5, dtype=torch.bool))
    for name in INTEGERS:
        assert getattr(found, name).tolist() == [0, 0, 0]
    assert found.margin.isnan().all()
    assert not found.identifiable.any()


@pytest.mark.parametrize("content", [1.0, 0.0])
def test_a_single_token_is_identified_with_margin_one(content):
    found = null_space(torch.full((1, 11), content))
    assert (found.rank_with_ones.item(), found.simplex_nullity.item(), found.margin.item()) == (1, 0, 1.0)
    assert found.identifiable


def test_values_of_zero_show_nothing():
    found = null_space(torch.zeros(5, 11))
    assert (found.rank.item(), found.rank_with_ones.item(), found.margin.item()) == (0, 1, 0.0)
    assert (found.nullity.item(), found.simplex_nullity.item()) == (5, 4)
    assert not found.identifiable


def test_rtol_sets_which_singular_values_count():
    values = torch.diag(torch.tensor([1.0, 0.1, 0.01], dtype=torch.float64))
    assert [null_space(values, rtol=rtol).rank.item() for rtol in (0.5, 0.05, 0.005)] == [1, 2, 3]


@pytest.mark.parametrize(("factor", "rank"), [(0.9, 2), (1.1, 3)])
@pytest.mark.parametrize("d_value", [3, 11])
def test_default_rtol_is_float32s_precision_times_the_larger_side(factor, rank, d_value):
    values = torch.zeros(5, d_value, dtype=torch.float64)
    values[0, 0] = values[1, 1] = 1.0
    values[2, 2] = factor * max(5, d_value) * float(np.finfo(np.float32).eps)
    assert null_space(values).rank.item() == rank


def test_a_large_common_value_hides_differences_below_float32s_precision():
    found = null_space(gaussian(5, 11) + 1e9)
    assert (found.rank.item(), found.rank_with_ones.item()) == (1, 1)  # both judged by the size of T
    assert not found.identifiable
    assert 0 < found.margin < 1e-8


# Measured traps.


def test_a_product_rounded_to_float32_keeps_its_rank():
    product = (gaussian(40, 16) @ gaussian(16, 128, seed=1)).float()
    assert null_space(product, rtol=40 * FLOAT64_EPSILON).rank.item() == 40  # the trap: noise counts
    assert null_space(product).rank.item() == 16


def test_a_tiny_scale_does_not_hide_values_behind_the_ones():
    values = 1e-6 * gaussian(128, 64)
    with_ones = torch.cat([values, torch.ones(128, 1)], dim=1)
    largest, *others = torch.linalg.svdvals(with_ones).tolist()
    assert max(others) < 128 * np.finfo(np.float32).eps * largest  # the trap: all but one vanish
    assert null_space(values).rank_with_ones.item() == 65


def test_values_in_bfloat16_are_judged_by_float32s_precision():
    values = gaussian(256, 64).bfloat16()
    coarse = 256 * torch.finfo(torch.bfloat16).eps
    assert null_space(values, rtol=coarse).rank.item() == 0  # the trap
    assert null_space(values).rank.item() == 64


def test_simplex_nullity_is_zero_up_to_one_token_past_the_rank():
    for rank, n in ((5, 5), (5, 6), (5, 7)):
        assert null_space(gaussian(n, rank)).simplex_nullity.item() == max(0, n - rank - 1)


def test_results_stand_on_the_leading_dimensions():
    found = null_space(gaussian(2, 3, 5, 11))
    assert all(field.shape == (2, 3) for field in found)
    assert found.identifiable.shape == (2, 3)
    assert found.margin.dtype == torch.float64
    assert not math.isnan(found.margin.sum().item())
