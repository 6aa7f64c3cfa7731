import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from identiformer.models.identifiability import max_entropy, max_entropy_attention, null_space
from references.bert_heads import bert_heads
from references.max_entropy import entropy, max_entropy_row

LOSS = 1e-6  # of entropy, in nats, that the tolerance may cost


def random_head(n, d_value, seed=0, sharpness=1.0, zeros=0.0, batch=()):
    generator = torch.Generator().manual_seed(seed)
    normal = {"generator": generator, "dtype": torch.float64}
    values = torch.randn(*batch, n, d_value, **normal)
    scores = torch.randn(*batch, n, n, **normal) * sharpness
    masked = (torch.rand(*batch, n, n, generator=generator) < zeros) & ~torch.eye(n, dtype=torch.bool)
    return scores.masked_fill(masked, -torch.inf).softmax(-1), values


def entropies(weights):
    return -torch.special.xlogy(weights, weights).sum(-1)


def output_errors(weights, other, values):
    return ((other - weights) @ values).norm(dim=-1) / (weights @ values).norm(dim=-1)


@settings(deadline=None)
@given(
    n=st.integers(1, 24),
    d_value=st.integers(1, 9),
    sharpness=st.floats(0, 30),
    zeros=st.floats(0, 0.9),
    seed=st.integers(0, 999),
)
def test_rows_are_distributions_with_the_same_output_and_no_less_entropy(n, d_value, sharpness, zeros, seed):
    weights, values = random_head(n, d_value, seed, sharpness, zeros)
    result = max_entropy_attention(weights, values)
    assert (~result.converged).sum() <= 2  # of weights as sharp as some of these 5 rows in 10,000 do not
    assert ((result.weights > 0) <= (weights > 0)).all()
    torch.testing.assert_close(result.weights.sum(-1), torch.ones(n, dtype=torch.float64))
    assert (output_errors(weights, result.weights, values)[result.converged] <= 1.1e-8).all()
    assert (entropies(result.weights) >= entropies(weights) - LOSS)[result.converged].all()


@settings(deadline=None, max_examples=15)
@given(
    n=st.integers(2, 8),
    d_value=st.integers(1, 4),
    sharpness=st.floats(0, 2),
    zeros=st.floats(0, 0.5),
    seed=st.integers(0, 999),
)
def test_rows_are_those_of_the_reference(n, d_value, sharpness, zeros, seed):
    weights, values = random_head(n, d_value, seed, sharpness, zeros)
    result = max_entropy_attention(weights, values).weights.numpy()
    for row, found in zip(weights.numpy(), result, strict=True):
        expected = max_entropy_row(row, values.numpy())
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert entropy(found) >= entropy(expected) - LOSS


@settings(deadline=None)
@given(n=st.integers(2, 12), seed=st.integers(0, 999))
def test_identifiable_map_is_its_own_answer(n, seed):
    weights, values = random_head(n, 13, seed, sharpness=3)
    result = max_entropy_attention(weights, values)
    assert result.converged.all()
    torch.testing.assert_close(result.weights, weights)


def test_answer_does_not_depend_on_the_row_it_starts_from():
    """Any other row with the same output has the same answer."""
    weights, values = random_head(20, 6)
    answer = max_entropy_attention(weights, values).weights
    between = (weights + answer) / 2
    torch.testing.assert_close(max_entropy_attention(between, values).weights, answer, atol=1e-6, rtol=0)


def test_batches_output_map_and_padding_change_nothing():
    weights, values = random_head(11, 3, batch=(2, 3))
    output_map = torch.randn(3, 3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    keep = torch.tensor([[True] * 11, [True] * 8 + [False] * 3])[:, None]
    weights[1, ..., 8:] = 0
    weights /= weights.sum(-1, keepdim=True)
    weights[1, :, 8:], values[1, :, 8:] = torch.nan, torch.inf
    result = max_entropy_attention(weights, values, output_map, keep)
    assert result.converged.all()
    for text, length in ((0, 11), (1, 8)):
        assert (result.weights[text, :, length:] == 0).all()
        assert (result.weights[text, :, :, length:] == 0).all()
        for head in range(3):
            raw = weights[text, head, :length, :length]
            alone = max_entropy_attention(raw, values[text, head, :length] @ output_map[head]).weights
            torch.testing.assert_close(result.weights[text, head, :length, :length], alone, atol=1e-6, rtol=0)


def test_rows_summing_to_one_only_in_float32_keep_their_sum():
    weights, values = random_head(40, 6)
    result = max_entropy_attention(weights.float(), values)
    assert result.converged.all()
    torch.testing.assert_close(result.weights.sum(-1), weights.float().double().sum(-1), atol=1e-14, rtol=0)


def test_one_hot_rows_stay():
    result = max_entropy_attention(torch.eye(5), random_head(5, 2)[1])
    assert result.converged.all()
    assert result.weights.equal(torch.eye(5, dtype=torch.float64))


@pytest.mark.parametrize("values", [torch.ones(6, 2), torch.zeros(6, 2)], ids=["equal tokens", "T = 0"])
def test_weights_that_do_not_show_become_uniform(values):
    weights = random_head(6, 2)[0]
    weights[1, 2] = 0
    weights[1] /= weights[1].sum()
    result = max_entropy_attention(weights, values)
    support = (weights > 0).double()
    assert result.converged.all()
    torch.testing.assert_close(result.weights, support / support.sum(-1, keepdim=True))


def test_single_token_is_its_own_answer():
    result = max_entropy_attention(torch.ones(1, 1), torch.ones(1, 3))
    assert (result.weights.item(), result.converged.item()) == (1, True)


def test_outputs_that_cancel_are_measured_against_the_values():
    values = torch.tensor([[1.0], [-1.0], [3.0], [-3.0]])
    result = max_entropy_attention(torch.tensor([[0.5, 0.5, 0, 0]] * 2 + [[0.3, 0.3, 0.2, 0.2]] * 2), values)
    assert result.converged.all()
    torch.testing.assert_close(result.weights[2], torch.full((4,), 0.25, dtype=torch.float64))


def test_rows_that_do_not_converge_are_flagged(monkeypatch):
    weights, values = random_head(20, 4, sharpness=5)
    monkeypatch.setattr(max_entropy, "MAX_STEPS", 3)
    result = max_entropy_attention(weights, values)
    within = output_errors(weights, result.weights, values) <= 1.1e-8
    assert not result.converged.all()
    assert within[result.converged].all()


@pytest.mark.parametrize("name", ["weights", "values"])
def test_non_finite_input_names_its_place(name):
    weights, values = random_head(4, 2, batch=(2, 3))
    parts = {"weights": weights, "values": values}
    parts[name][1, 2, 0, 1] = torch.inf
    with pytest.raises(ValueError, match=rf"{name}.*\(1, 2\)"):
        max_entropy_attention(**parts)


@pytest.mark.parametrize(("length", "heads"), [(40, 12), (64, 4), (128, 2)])
def test_nearly_every_row_of_a_real_model_converges(length, heads):
    """All 12 heads of each of 6 layers at 40 tokens, the first 4 and 2 heads at 64 and 128."""
    query, key, values, output_map = (part[:, :heads] for part in bert_heads(length))
    weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
    result = max_entropy_attention(weights, values, output_map)
    errors = output_errors(weights, result.weights, values @ output_map)
    assert result.converged.double().mean() >= 0.999
    assert (errors[result.converged] <= 1.1e-8).all()
    assert (entropies(result.weights) >= entropies(weights) - LOSS)[result.converged].all()


def test_short_text_of_a_real_model_is_its_own_answer():
    heads = bert_heads(24)
    assert (null_space(heads.values, heads.output_map).simplex_nullity == 0).all()
    result = max_entropy_attention(heads.weights, heads.values, heads.output_map)
    torch.testing.assert_close(result.weights, heads.weights, atol=1e-12, rtol=0)
