import numpy as np
import pytest
import torch
from asserting import assert_close
from hypothesis import given
from hypothesis import strategies as st
from identiformer.models.identifiability import agreement, effective_attention, null_space
from references import effective as reference


def gaussian(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def attention_map(*shape, seed=0):
    return gaussian(*shape, shape[-1], seed=seed).softmax(-1)


@pytest.fixture(params=[False, True], ids=["plain", "preserve_sum"])
def preserve_sum(request):
    return request.param


@given(
    n=st.integers(1, 13),
    d_value=st.integers(1, 11),
    mapped=st.booleans(),
    preserve_sum=st.booleans(),
    seed=st.integers(0, 999),
)
def test_equals_the_reference_twin(n, d_value, mapped, preserve_sum, seed):
    weights, values = attention_map(n, seed=seed), gaussian(n, d_value, seed=seed + 1)
    output_map = gaussian(d_value, 7, seed=seed + 2) if mapped else None
    keep = gaussian(n, seed=seed + 3) > -0.5
    keep[0] = True
    found = effective_attention(weights, values, output_map, keep, preserve_sum)
    expected = torch.from_numpy(reference.effective_attention(weights, values, output_map, keep, preserve_sum))
    assert_close(found, expected, 1e-9)


@pytest.mark.parametrize("n", [5, 11, 12, 23])
def test_the_output_stays_the_same(n, preserve_sum):
    weights, values, output_map = attention_map(2, 3, n), gaussian(2, 3, n, 11), gaussian(3, 11, 7, seed=1)
    effective = effective_attention(weights, values, output_map, preserve_sum=preserve_sum)
    matrix = values @ output_map
    assert_close(effective @ matrix, weights @ matrix, 1e-10)


@given(n=st.integers(2, 13), d_value=st.integers(1, 9), seed=st.integers(0, 999))
def test_no_matrix_with_the_same_output_is_smaller(n, d_value, seed):
    weights, values = attention_map(n, seed=seed), gaussian(n, d_value, seed=seed + 1)
    effective = effective_attention(weights, values)
    shift = gaussian(n, n, seed=seed + 2)
    shift = shift - shift @ values @ torch.linalg.pinv(values)  # shift @ values is 0
    # values may be ill-conditioned, and rounding of their pseudo-inverse then leaves more of the shift
    assert torch.linalg.matrix_norm(effective + shift) >= torch.linalg.matrix_norm(effective) * (1 - 1e-9)
    expected = reference.smallest_with_the_same_output(weights.numpy(), values.numpy())
    assert_close(effective, torch.from_numpy(expected), 1e-8)


@pytest.mark.parametrize("n", [5, 12, 23])
def test_effective_attention_is_idempotent(n, preserve_sum):
    weights, values = attention_map(n), gaussian(n, 11)
    once = effective_attention(weights, values, preserve_sum=preserve_sum)
    assert_close(effective_attention(once, values, preserve_sum=preserve_sum), once, 1e-10)


@pytest.mark.parametrize("n", [1, 5, 12, 13, 23])
def test_preserve_sum_keeps_the_sum_of_each_row(n):
    weights, values = 3 * attention_map(n), gaussian(n, 11)
    effective = effective_attention(weights, values, preserve_sum=True)
    assert_close(effective.sum(-1), torch.full((n,), 3.0), 1e-12)


@pytest.mark.parametrize(("n", "equal"), [(11, True), (12, True), (13, False)])
def test_preserve_sum_gives_the_map_back_wherever_it_is_identifiable(n, equal):
    weights, values = attention_map(n), gaussian(n, 11)
    effective = effective_attention(weights, values, preserve_sum=True)
    assert null_space(values).identifiable.item() is equal
    assert torch.allclose(effective, weights, atol=1e-12) is equal


def test_the_plain_variant_loses_row_sums_one_token_earlier():
    weights, values = attention_map(12), gaussian(12, 11)
    assert null_space(values).identifiable
    assert not torch.allclose(effective_attention(weights, values), weights, atol=1e-3)


def test_a_batch_with_padding_equals_each_text_alone(preserve_sum):
    weights, values, output_map = attention_map(4, 3, 12), gaussian(4, 3, 12, 5), gaussian(3, 5, 7, seed=1)
    keep = torch.arange(12) < torch.tensor([[12], [9], [5], [1]])
    dirty = (
        weights.masked_fill(~keep[:, None, :, None], torch.nan),
        values.masked_fill(~keep[:, None, :, None], torch.nan),
    )
    together = effective_attention(*dirty, output_map, keep[:, None], preserve_sum)
    for text in range(4):
        kept = keep[text]
        alone = effective_attention(
            weights[text][:, kept][:, :, kept], values[text][:, kept], output_map, preserve_sum=preserve_sum
        )
        assert_close(together[text][:, kept][:, :, kept], alone, 1e-10)
        assert (together[text][:, ~kept] == 0).all()
        assert (together[text][..., ~kept] == 0).all()


def test_a_text_of_no_tokens_gives_zeros(preserve_sum):
    keep = torch.zeros(5, dtype=torch.bool)
    found = effective_attention(attention_map(5), gaussian(5, 11), keep=keep, preserve_sum=preserve_sum)
    assert torch.equal(found, torch.zeros(5, 5, dtype=torch.float64))


def test_values_of_zero_leave_nothing_but_the_row_sums():
    weights, values = attention_map(5), torch.zeros(5, 11)
    assert (effective_attention(weights, values) == 0).all()
    assert_close(
        effective_attention(weights, values, preserve_sum=True), torch.full((5, 5), 0.2, dtype=torch.float64), 1e-12
    )


@pytest.mark.parametrize("name", ["weights", "values"])
def test_a_number_that_is_not_finite_is_refused_with_its_leading_index(name):
    tensors = {"weights": attention_map(2, 3, 5), "values": gaussian(2, 3, 5, 11)}
    tensors[name][1, 2, 4, 0] = torch.nan
    with pytest.raises(ValueError, match=rf"{name} .*index \(1, 2\)"):
        effective_attention(**tensors)


# Agreement.


@given(n=st.integers(2, 9), padding=st.integers(0, 3), seed=st.integers(0, 999))
def test_agreement_equals_numpy_and_loops(n, padding, seed):
    raw, effective = attention_map(n + padding, seed=seed), gaussian(n + padding, n + padding, seed=seed + 1)
    keep = torch.ones(n + padding, dtype=torch.bool)
    keep[:padding] = False
    expected = reference.agreement(raw, effective, keep)
    assert [field.item() for field in agreement(raw, effective, keep)] == pytest.approx(expected, rel=1e-9)


def test_agreement_needs_no_mask_and_keeps_leading_dimensions():
    raw, effective = attention_map(2, 3, 5), gaussian(2, 3, 5, 5)
    found = agreement(raw, effective)
    assert all(field.shape == (2, 3) for field in found)
    expected = reference.agreement(raw[1, 2], effective[1, 2])
    assert [field[1, 2].item() for field in found] == pytest.approx(expected, rel=1e-9)


def test_nan_at_padding_does_not_reach_agreement():
    raw, effective = attention_map(5), gaussian(5, 5)
    keep = torch.tensor([True, False, True, True, False])
    cells = ~(keep[:, None] & keep)
    dirty = agreement(raw.masked_fill(cells, torch.nan), effective.masked_fill(cells, torch.nan), keep)
    for before, after in zip(agreement(raw, effective, keep), dirty, strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("n", [3, 7, 11])
def test_pearson_of_a_constant_map_is_nan_despite_rounding(n):
    constant = torch.full((n, n), 1 / n, dtype=torch.float64)
    assert agreement(constant, attention_map(n)).pearson.isnan()
    assert agreement(attention_map(n), constant).pearson.isnan()
    averaged = effective_attention(constant, gaussian(n, 2 * n), preserve_sum=True)  # constant but for rounding
    assert agreement(constant, averaged).pearson.isnan()


def test_pearson_of_a_single_token_is_nan_and_its_residual_is_not():
    found = agreement(torch.ones(1, 1), torch.ones(1, 1))
    assert found.pearson.isnan()
    assert (found.residual.item(), found.negative_mass.item()) == (0.0, 0.0)


def test_an_equal_map_agrees_fully():
    raw = attention_map(7)
    found = agreement(raw, raw.clone())
    assert found.pearson.item() == pytest.approx(1.0)
    assert (found.residual.item(), found.negative_mass.item()) == (0.0, 0.0)


def test_negative_mass_is_averaged_over_rows():
    effective = torch.tensor([[0.5, -0.25], [-1.0, -0.5]])
    assert agreement(torch.eye(2), effective).negative_mass.item() == pytest.approx((0.25 + 1.5) / 2)


def test_pearson_does_not_depend_on_scale():
    raw = attention_map(7)
    for scale in (1e-8, 1e8):
        found = agreement(raw, scale * raw).pearson.item()
        assert found == pytest.approx(np.corrcoef(raw.flatten(), raw.flatten())[0, 1])
