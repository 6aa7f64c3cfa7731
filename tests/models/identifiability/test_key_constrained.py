import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from identiformer.models.identifiability import key_ambiguity, null_space
from references.bert_heads import bert_heads
from references.key_constrained import ambiguity, margin


def random_head(n, d_key, d_value, seed=0, batch=()):
    generator = torch.Generator().manual_seed(seed)
    normal = {"generator": generator, "dtype": torch.float64}
    keys, values = torch.randn(*batch, n, d_key, **normal), torch.randn(*batch, n, d_value, **normal)
    weights = torch.randn(*batch, n, n, **normal).softmax(-1)
    return weights, keys, values


@pytest.mark.parametrize(
    ("n", "d_key", "d_value", "expected"),
    [(128, 64, 64, 0), (128, 65, 64, 1), (128, 96, 64, 32), (256, 128, 64, 64), (40, 64, 16, 23)],
)
def test_gaussian_heads_have_their_generic_ambiguity(n, d_key, d_value, expected):
    rows = torch.tensor([3, 0, n - 1])
    result = key_ambiguity(*random_head(n, d_key, d_value), rows=rows)
    assert result.ambiguity.tolist() == [expected] * 3
    assert (result.margin == 0).all() if expected else (result.margin > 0).all()


@settings(deadline=None)
@given(n=st.integers(1, 11), d_key=st.integers(1, 9), d_value=st.integers(1, 7), seed=st.integers(0, 999))
def test_ambiguity_follows_from_the_sizes(n, d_key, d_value, seed):
    weights, keys, values = random_head(n, d_key, d_value, seed)
    generic = max(0, min(d_key, n - 1) - (int(null_space(values).rank_with_ones) - 1))
    assert (key_ambiguity(weights, keys, values).ambiguity == generic).all()


@settings(deadline=None)
@given(
    n=st.integers(2, 9),
    d_key=st.integers(1, 5),
    d_value=st.integers(1, 5),
    zeros=st.floats(0, 0.9),
    seed=st.integers(0, 999),
)
def test_every_row_agrees_with_the_reference_on_its_support(n, d_key, d_value, zeros, seed):
    weights, keys, values = random_head(n, d_key, d_value, seed)
    generator = torch.Generator().manual_seed(seed)
    weights = weights.masked_fill((torch.rand(n, n, generator=generator) < zeros) & ~torch.eye(n, dtype=torch.bool), 0)
    weights = weights / weights.sum(-1, keepdim=True)
    result = key_ambiguity(weights, keys, values)
    for i, row in enumerate(weights.numpy()):
        assert result.ambiguity[i] == ambiguity(row, keys.numpy(), values.numpy())
        assert result.margin[i].item() == pytest.approx(margin(row, keys.numpy(), values.numpy()), abs=1e-6)


def test_batches_output_map_and_padding_change_nothing():
    weights, keys, values = random_head(7, 5, 3, batch=(2, 3))
    output_map = torch.randn(3, 3, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    keep = torch.tensor([[True] * 7, [True] * 5 + [False] * 2])[:, None]
    weights[1, ..., 5:] = 0
    weights /= weights.sum(-1, keepdim=True)
    keys[1, :, 5:], values[1, :, 5:] = torch.nan, torch.inf
    rows = torch.tensor([6, 1])
    result = key_ambiguity(weights, keys, values, output_map, keep, rows)
    assert result.ambiguity[1, :, 0].tolist() == [-1] * 3
    assert result.margin[1, :, 0].isnan().all()
    assert result.reach[1, :, 0].isnan().all()
    for text, length in ((0, 7), (1, 5)):
        for head in range(3):
            alone = key_ambiguity(
                weights[text, head, :length, :length],
                keys[text, head, :length],
                values[text, head, :length] @ output_map[head],
            )
            for field, expected in zip(result, alone, strict=True):
                torch.testing.assert_close(field[text, head, 1], expected[1])


def test_reach_is_the_weight_beside_the_largest():
    weights, keys, values = random_head(5, 3, 2)
    torch.testing.assert_close(key_ambiguity(weights, keys, values).reach, 1 - weights.amax(-1))


def test_one_hot_row_has_nothing_to_move():
    _, keys, values = random_head(5, 3, 2)
    result = key_ambiguity(torch.eye(5), keys, values)
    assert result.ambiguity.tolist() == [0] * 5
    assert result.margin.tolist() == [1] * 5
    assert result.reach.tolist() == [0] * 5


def test_single_token_is_its_own_answer():
    assert [field.tolist() for field in key_ambiguity(*random_head(1, 3, 2))] == [[0], [1], [0]]


def test_equal_tokens_cannot_be_told_apart_by_a_query():
    result = key_ambiguity(torch.full((6, 6), 1 / 6), torch.ones(6, 3), torch.ones(6, 2))
    assert result.ambiguity.tolist() == [0] * 6
    assert result.margin.tolist() == [1] * 6


def test_values_of_zero_leave_every_direction_of_the_keys_open():
    weights, keys, values = random_head(9, 4, 3)
    result = key_ambiguity(weights, keys, torch.zeros_like(values))
    assert result.ambiguity.tolist() == [4] * 9
    assert result.margin.tolist() == [0] * 9


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scale_of_keys_and_values_does_not_matter(scale):
    weights, keys, values = random_head(20, 6, 5)
    result = key_ambiguity(weights, keys * scale, values * scale)
    expected = key_ambiguity(weights, keys, values)
    assert result.ambiguity.equal(expected.ambiguity)
    torch.testing.assert_close(result.margin, expected.margin)


def test_rounding_of_float32_weights_is_no_direction():
    weights, keys, values = random_head(9, 16, 4)
    assert key_ambiguity(weights.float(), keys, values).ambiguity.tolist() == [4] * 9


@pytest.mark.parametrize("name", ["weights", "keys", "values"])
def test_non_finite_input_names_its_place(name):
    weights, keys, values = random_head(4, 3, 2, batch=(2, 3))
    parts = {"weights": weights, "keys": keys, "values": values}
    parts[name][1, 2, 0, 1] = torch.nan
    with pytest.raises(ValueError, match=rf"{name}.*\(1, 2\)"):
        key_ambiguity(**parts)


@pytest.mark.parametrize(("length", "typical"), [(20, (0.9, 1.0)), (40, (0.04, 0.2)), (128, (0.01, 0.08))])
def test_no_row_of_a_real_model_is_ambiguous_given_its_keys(length, typical):
    """Two rows of every head; the median margin falls as the text grows."""
    heads = bert_heads(length)
    rows = torch.tensor([0, length // 2])
    result = key_ambiguity(heads.weights, heads.key, heads.values, heads.output_map, rows=rows)
    assert (result.ambiguity == 0).all()
    assert typical[0] <= result.margin.median() <= typical[1]
