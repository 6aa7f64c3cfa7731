import math
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from asserting import assert_close
from hypothesis import given
from hypothesis import strategies as st
from identiformer.models.identifiability import context_profile, input_contributions
from references.attribution import contributions as by_gradients
from references.attribution import profile as by_loops

N, D = 4, 5


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixing(seed=0, widths=(D, 7, 3)):
    """States (..., n, width) of two layers that mix tokens, without a mask."""
    weights = [normal(*sizes, seed=seed + place) for place, sizes in enumerate(pairwise(widths))]

    def states(hidden):
        found = []
        for weight in weights:
            hidden = ((hidden @ hidden.mT).softmax(-1) @ hidden @ weight).tanh()
            found.append(hidden)
        return found

    return states


def fixed(attention, maps):
    """Layers `h + A h M` of a fixed attention A: no norm, no feed-forward."""

    def states(hidden):
        found = []
        for matrix in maps:
            hidden = hidden + attention @ hidden @ matrix.mT
            found.append(hidden)
        return found

    return states


# Exact.


@given(n=st.integers(1, 5), d=st.integers(1, 4), seed=st.integers(0, 999), chunk=st.none() | st.integers(1, 30))
def test_exact_contributions_equal_a_loop_over_gradients(n, d, seed, chunk):
    states, inputs = mixing(seed, (d, 3, 2)), normal(n, d, seed=seed)
    found = input_contributions(states, inputs, chunk=chunk)
    for mine, expected in zip(found.contributions, by_gradients(states, inputs), strict=True):
        np.testing.assert_allclose(mine, expected, atol=1e-10)
    assert not any(errors.any() for errors in found.standard_error)


def test_texts_of_a_batch_and_an_input_for_each_layer_are_taken_at_once():
    states, inputs = mixing(), normal(2, 3, N, D)  # layer, text
    first, second = input_contributions(lambda x: [states(x[0])[0], states(x[1])[1]], inputs).contributions
    assert first.shape == second.shape == (3, N, N)
    for text in range(3):
        np.testing.assert_allclose(first[text], by_gradients(states, inputs[0, text])[0], atol=1e-10)
        np.testing.assert_allclose(second[text], by_gradients(states, inputs[1, text])[1], atol=1e-10)


def masked(keep):
    """The states of `mixing`, where nobody looks at padding."""

    def states(hidden):
        scores = (hidden @ hidden.mT).masked_fill(~keep[:, None, :], -1e30)
        return [scores.softmax(-1) @ hidden]

    return states


@pytest.mark.parametrize("probes", [None, 8])
def test_padding_is_exactly_0_and_what_stands_there_changes_nothing(keep, probes):
    inputs = normal(2, 5, D)
    found, other = (
        input_contributions(masked(keep), inputs.masked_fill(~keep[..., None], value), keep, probes)
        for value in (0.0, 1e3)
    )
    pairs = keep[..., None] & keep[:, None]
    for mine, changed in zip(found, other, strict=True):
        assert torch.equal(mine[0], changed[0])
        assert not mine[0][~pairs].any()
    alone = input_contributions(mixing(widths=(D, D)), inputs[1], probes=probes)
    assert alone.contributions[0].shape == (5, 5)
    assert_close(found.contributions[0].sum(-1), keep.double(), 1e-12)


@pytest.mark.parametrize("probes", [None, 8])
def test_a_text_between_padding_has_its_own_numbers(keep, probes):
    inputs = normal(2, 5, D)
    found = input_contributions(masked(keep), inputs, keep, probes)
    alone = input_contributions(masked(torch.ones(1, 3, dtype=torch.bool)), inputs[:1, keep[0]], None, probes)
    for mine, expected in zip(found, alone, strict=True):
        assert_close(mine[0][0][keep[0]][:, keep[0]], expected[0][0], 1e-12)


def test_texts_of_no_tokens_have_no_contributions():
    keep = torch.tensor([[False] * 3, [True, False, True]])
    (found,) = input_contributions(masked(keep), normal(2, 3, D), keep).contributions
    assert not found[0].any()
    assert_close(found[1].sum(-1), keep[1].double(), 1e-12)
    assert not input_contributions(masked(keep[:1]), normal(1, 3, D), keep[:1]).contributions[0].any()
    assert input_contributions(mixing(), normal(2, 0, D)).contributions[0].shape == (2, 0, 0)


def test_a_state_that_depends_on_nothing_has_no_contributions():
    (found,) = input_contributions(lambda x: [x * torch.tensor([[0.0], [1.0]])], normal(2, D)).contributions
    assert found[0].isnan().all()
    assert found[1].tolist() == [0.0, 1.0]


def test_derivatives_that_are_not_finite_are_named():
    inputs = normal(2, 3, D)
    inputs[1, 2, 0] = math.nan
    with pytest.raises(ValueError, match=r"layer 1 is not finite at index \(1,\)"):
        input_contributions(lambda x: [2 * x, x**3], inputs)


def test_progress_is_told_after_every_product():
    told = []
    input_contributions(mixing(), normal(N, D), chunk=6, progress=lambda *numbers: told.append(numbers))
    assert told == [(6, 20), (12, 20), (18, 20), (20, 20)]


# Known by algebra.


def test_attention_fixed_to_the_identity_leaves_every_token_to_itself():
    maps = normal(2, D, D)
    for found in input_contributions(fixed(torch.eye(N).double(), maps), normal(N, D)).contributions:
        assert torch.equal(found, torch.eye(N).double())
        profile = context_profile(found)
        assert profile.own_share.tolist() == [1.0] * N
        assert profile.not_led_by_own == 0
        assert profile.by_distance.tolist() == [0.0] * (N - 1) + [1.0] + [0.0] * (N - 1)


def test_attention_fixed_to_one_token_gives_that_token_its_share():
    first, second = maps = normal(2, D, D)
    to_token_1 = torch.zeros(N, N).double()
    to_token_1[:, 1] = 1
    found = input_contributions(fixed(to_token_1, maps), normal(N, D)).contributions
    # A token is itself plus what it hears of token 1: M1 x_1 in the first layer, (M1 + M2 + M2 M1) x_1 in both.
    for contributions, heard in zip(found, (first, first + second + second @ first), strict=True):
        share = (math.sqrt(D) / (math.sqrt(D) + heard.norm())).item()
        expected = share * torch.eye(N).double() + (1 - share) * to_token_1
        expected[1] = to_token_1[1]
        assert_close(contributions, expected, 1e-12)
        profile = context_profile(contributions)
        assert_close(profile.own_share, expected.diagonal(), 1e-12)
        assert profile.not_led_by_own == (3 / 4 if share < 1 / 2 else 0)
        # Of the pairs one place apart, (0, 1) hears; of those one place before, (2, 1); two places before, (3, 1).
        assert_close(profile.by_distance[[N, N - 2, N - 3]], (1 - share) * torch.tensor([2, 2, 3]).double() / 6, 1e-12)


# Sampled.


@cache
def estimates(probes, seeds=200):
    """Contributions and standard errors of `seeds` estimates, *(seeds, n, n)* each, and what is true."""
    states, inputs = mixing(), normal(N, D)
    found = [input_contributions(states, inputs, probes=probes, seed=seed) for seed in range(seeds)]
    shares, errors = (torch.stack([part[1] for part in parts]) for parts in zip(*found, strict=True))
    return shares, errors, input_contributions(states, inputs).contributions[1]


def test_estimates_lie_around_the_truth_as_their_standard_errors_say():
    shares, errors, truth = estimates(64)
    spread = ((shares - truth) ** 2).mean(0).sqrt()
    stated = (errors**2).mean(0).sqrt()
    # Over 200 seeds a standard deviation is known to 5 %; the quotient's bias and the delta method take some more.
    assert ((spread / stated - 1).abs() < 0.2).all()
    assert ((shares.mean(0) - truth).abs() < 5 * stated / math.sqrt(200) + 0.01 * truth).all()


def test_the_error_halves_when_the_probes_are_quadrupled():
    few, many = (estimates(probes) for probes in (16, 64))
    assert (few[1].mean() / many[1].mean()).item() == pytest.approx(2, rel=0.05)
    spreads = [(shares - truth).square().mean().sqrt() for shares, _, truth in (few, many)]
    assert (spreads[0] / spreads[1]).item() == pytest.approx(2, rel=0.1)


def test_one_coordinate_is_known_from_a_sign():
    states, inputs = mixing(widths=(1, 3, 2)), normal(N, 1)
    sampled, exact = (input_contributions(states, inputs, probes=probes) for probes in (2, None))
    for mine, expected, error in zip(sampled.contributions, exact.contributions, sampled.standard_error, strict=True):
        assert_close(mine, expected, 1e-12)
        assert error.max() < 1e-7  # roots of rounding


def test_the_seed_decides_and_the_chunk_does_not():
    states, inputs = mixing(), normal(N, D)
    first, again, other = (
        input_contributions(states, inputs, probes=8, seed=seed, chunk=chunk).contributions[1]
        for seed, chunk in ((3, None), (3, 5), (4, None))
    )
    assert_close(first, again, 1e-12)
    assert not torch.allclose(first, other)


@pytest.mark.parametrize("probes", [0, 1])
def test_too_few_probes_are_refused(probes):
    with pytest.raises(ValueError, match=f"probes is {probes}: standard errors need at least 2"):
        input_contributions(mixing(), normal(N, D), probes=probes)


# Profiles.


@given(n=st.integers(0, 7), seed=st.integers(0, 999))
def test_a_profile_is_what_loops_over_tokens_and_pairs_give(n, seed):
    keep = torch.rand(2, n, generator=torch.Generator().manual_seed(seed)) < 0.7
    shares = normal(2, n, n, seed=seed).abs() * (keep[..., None] & keep[:, None])
    shares = shares / shares.sum(-1, keepdim=True).clamp(min=1e-300)
    found = context_profile(shares, keep)
    assert found.distance.tolist() == list(range(1 - n, n))
    for text in range(2):
        own, not_led, by_distance = by_loops(shares[text].tolist(), keep[text].tolist())
        np.testing.assert_allclose(found.own_share[text][keep[text]], own)
        assert found.own_share[text][~keep[text]].isnan().all()
        np.testing.assert_allclose(found.not_led_by_own[text], not_led)
        expected = [by_distance.get(distance, math.nan) for distance in found.distance.tolist()]
        np.testing.assert_allclose(found.by_distance[text], expected)


def test_a_row_without_contributions_is_left_out_of_the_profile():
    shares = torch.tensor([[0.2, 0.8], [math.nan, math.nan]]).double()
    found = context_profile(shares)
    assert found.not_led_by_own == 1
    np.testing.assert_allclose(found.by_distance, [math.nan, 0.2, 0.8])
