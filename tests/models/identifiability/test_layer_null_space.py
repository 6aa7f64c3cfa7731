import pytest
import torch
from asserting import assert_close
from hypothesis import given
from hypothesis import strategies as st
from identiformer.models.identifiability import layer_null_space, null_space
from references import null_space as reference


def gaussian(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# At d_model 128, 8 heads: number of value heads, d_value, number of output maps, merge.
SIZES = {"standard": (8, 16, 8, "concat"), "identifiable": (8, 128, 1, "sum"), "shared_value": (1, 128, 1, "mean")}


def draw(preset, n=40):
    value_heads, d_value, maps, merge_heads = SIZES[preset]
    # Seed 3: the map's condition number is 272. That of a rare draw, 20,000, comes too near the rank rule.
    return gaussian(value_heads, n, d_value), gaussian(maps, d_value, 128, seed=3), 8, merge_heads


@pytest.mark.parametrize("preset", ["standard", "identifiable"])
def test_adding_heads_does_not_make_all_of_them_identifiable_together(preset):
    found = layer_null_space(*draw(preset))
    assert (found.joint_nullity.item(), found.joint_simplex_nullity.item()) == (192, 184)
    assert found.merged is None


def test_the_averaged_map_of_a_shared_value_head_is_identifiable():
    values, output_map, *rest = draw("shared_value")
    found = layer_null_space(values, output_map, *rest)
    assert found.merged.identifiable.item()
    assert (found.joint_nullity.item(), found.joint_simplex_nullity.item()) == (7 * 40, 7 * 39)  # as seven heads fewer
    alone = null_space(values[0], output_map[0])
    for merged, expected in zip(found.merged, alone, strict=True):
        assert merged.item() == pytest.approx(expected.item(), rel=1e-9)


def test_the_averaged_map_is_judged_by_the_value_size_as_a_head_is():
    sizes = torch.ones(6, dtype=torch.float64)
    sizes[5] = 1e-5  # between the tolerances of 6 values and of 512 outputs, 7e-7 and 6e-5
    values, output_map = torch.diag(sizes), torch.eye(6, 512, dtype=torch.float64)
    merged = layer_null_space(values[None], output_map[None], 8, "mean").merged
    assert merged.rank == null_space(values, output_map).rank == 6


CASES = {
    "concat": (4, 4, "concat"),
    "concat, two value heads": (2, 4, "concat"),
    "concat, one value head": (1, 4, "concat"),
    "sum": (4, 1, "sum"),
    "sum, two value heads": (2, 1, "sum"),
    "mean, one value head": (1, 1, "mean"),
}


@pytest.mark.parametrize("case", CASES)
@given(n=st.integers(1, 9), seed=st.integers(0, 999))
def test_equals_the_reference_over_all_heads(case, n, seed):
    value_heads, maps, merge_heads = CASES[case]
    values, output_map = gaussian(value_heads, n, 3, seed=seed), gaussian(maps, 3, 7, seed=seed + 1)
    keep = torch.ones(n, dtype=torch.bool)
    keep[n - 1] = n == 1
    found = layer_null_space(values, output_map, 4, merge_heads, keep)
    matrices = [
        reference.transformed(values[head * value_heads // 4], output_map[head * maps // 4], keep) for head in range(4)
    ]
    expected = reference.joint_nullities(matrices, d_value=3)
    assert (found.joint_nullity.item(), found.joint_simplex_nullity.item()) == expected


@pytest.mark.parametrize("preset", SIZES)
def test_a_batch_with_padding_equals_each_text_alone(preset):
    value_heads, d_value, maps, merge_heads = SIZES[preset]
    values, output_map = gaussian(3, value_heads, 12, d_value), gaussian(maps, d_value, 13, seed=1)
    keep = torch.arange(12) < torch.tensor([[12], [7], [1]])
    dirty = values.masked_fill(~keep[:, None, :, None], torch.nan)
    together = layer_null_space(dirty, output_map, 8, merge_heads, keep)
    for text in range(3):
        alone = layer_null_space(values[text][:, keep[text]], output_map, 8, merge_heads)
        assert together.joint_nullity[text] == alone.joint_nullity
        assert together.joint_simplex_nullity[text] == alone.joint_simplex_nullity
        if alone.merged:
            assert together.merged.rank[text] == alone.merged.rank
            assert_close(together.merged.margin[text], alone.merged.margin, 1e-9)


def test_a_text_of_no_tokens_counts_nothing():
    value_heads, output_map, heads, merge = draw("shared_value", n=5)
    found = layer_null_space(value_heads, output_map, heads, merge, torch.zeros(5, dtype=torch.bool))
    assert (found.joint_nullity.item(), found.joint_simplex_nullity.item()) == (0, 0)
    assert not found.merged.identifiable


@pytest.mark.parametrize(("maps", "merge_heads", "needed"), [(1, "concat", 4), (4, "sum", 1), (4, "mean", 1)])
def test_a_wrong_number_of_output_maps_is_named(maps, merge_heads, needed):
    with pytest.raises(ValueError, match=f"holds {maps} maps: '{merge_heads}' of 4 heads needs {needed}"):
        layer_null_space(gaussian(4, 5, 3), gaussian(maps, 3, 7), 4, merge_heads)


def test_nan_at_a_kept_token_is_refused():
    values = gaussian(2, 4, 5, 3)
    values[1, 2, 0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"not finite at index \(1, 2\)"):
        layer_null_space(values, gaussian(4, 3, 7), 4, "concat")
