import pytest
import torch
from asserting import assert_close
from identiformer.models.functional.attention import (
    attend,
    attend_averaged,
    attend_fused,
    attention_weights,
    concat_heads,
    mean_heads,
    sum_heads,
)
from references import attention as reference
from torch.nn.attention import SDPBackend, sdpa_kernel

ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-13}  # of the largest entry: a few units in the last place
BIAS_SHAPES = {"none": None, "per cell": (2, 3, 5, 5), "per head": (3, 5, 5), "per text": (2, 1, 1, 5)}


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["whole", "padded"])
def mask(request, keep):
    return keep if request.param else None


@pytest.fixture(params=BIAS_SHAPES)
def bias(request, dtype):
    shape = BIAS_SHAPES[request.param]
    return None if shape is None else torch.randn(shape, dtype=dtype)


def draw_heads(dtype, d_key=7, d_value=11):
    return [torch.randn(2, 3, 5, size, dtype=dtype) for size in (d_key, d_key, d_value)]


def test_weights_equal_the_loop(dtype, mask, bias):
    query, key, _ = draw_heads(dtype)
    full_bias = None if bias is None else bias.broadcast_to(2, 3, 5, 5)
    expected = reference.attention_weights(query, key, mask, full_bias)
    assert_close(attention_weights(query, key, mask, bias), expected, ROUNDING[dtype])


def test_head_output_is_the_weighted_sum_of_values(dtype, mask):
    query, key, value = draw_heads(dtype)
    heads, weights = attend(query, key, value, mask)
    expected = torch.einsum("bhqk,bhkv->bhqv", reference.attention_weights(query, key, mask), value.double())
    assert_close(heads, expected, ROUNDING[dtype])
    assert weights.shape == (2, 3, 5, 5)


@pytest.mark.parametrize("d_value", [7, 11], ids=["equal sizes", "own value size"])
def test_fused_equals_explicit(dtype, mask, bias, d_value):
    tensors = draw_heads(dtype, d_value=d_value)
    assert_close(attend_fused(*tensors, mask, bias), attend(*tensors, mask, bias)[0], ROUNDING[dtype])


def test_a_fused_kernel_runs_at_equal_sizes_and_agrees(dtype, mask, bias):
    tensors = draw_heads(dtype, d_value=7)
    bias = None if bias is None else bias.broadcast_to(2, 3, 5, 5)  # the kernel takes 2 or 4 dimensions
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):  # anything else would raise
        fused = attend_fused(*tensors, mask, bias)
    assert_close(fused, attend(*tensors, mask, bias)[0], ROUNDING[dtype])


def test_gradients_of_both_paths_agree(dtype, mask, bias):
    tensors = [tensor.requires_grad_() for tensor in draw_heads(dtype)]
    probe = torch.randn(2, 3, 5, 11, dtype=dtype)
    fused = torch.autograd.grad((attend_fused(*tensors, mask, bias) * probe).sum(), tensors)
    explicit = torch.autograd.grad((attend(*tensors, mask, bias)[0] * probe).sum(), tensors)
    for mine, other in zip(fused, explicit, strict=True):
        assert_close(mine, other, 10 * ROUNDING[dtype])  # a backward pass rounds a few times more


@pytest.mark.parametrize("empty", [False, True], ids=["", "a text of no tokens"])
def test_averaged_maps_give_the_mean_of_heads_that_share_their_values(dtype, mask, empty):
    query, key, value = tensors = [tensor.requires_grad_() for tensor in draw_heads(dtype)]
    mask = torch.tensor([[False] * 5, [True] * 5]) if empty else mask
    averaged = attend_averaged(query, key, value[:, 0], mask)
    heads = mean_heads(attend(query, key, value[:, :1].expand_as(value), mask)[0])
    assert_close(averaged, heads, ROUNDING[dtype])
    probe = torch.randn(2, 5, 11, dtype=dtype)
    mine, others = (torch.autograd.grad((path * probe).sum(), tensors) for path in (averaged, heads))
    for one, other in zip(mine, others, strict=True):
        assert_close(one, other, 10 * ROUNDING[dtype])  # a backward pass rounds a few times more


def test_scores_are_divided_by_the_root_of_d_key_whatever_d_value_is():
    query, key, value = draw_heads(torch.float64, d_key=4, d_value=9)
    expected = torch.einsum("bhqi,bhki->bhqk", query, key).div(2).softmax(-1)
    heads, weights = attend(query, key, value)
    assert_close(weights, expected, 1e-13)
    assert_close(attend_fused(query, key, value), expected @ value, 1e-13)
    assert_close(heads, expected @ value, 1e-13)


def test_padded_keys_get_no_weight_and_kept_rows_sum_to_one(dtype, keep):
    query, key, _ = draw_heads(dtype)
    weights = attention_weights(query, key, keep)
    assert (weights.masked_select(~keep[:, None, None, :]) == 0).all()
    assert_close(weights.sum(-1), torch.ones(2, 3, 5), ROUNDING[dtype])


@pytest.mark.parametrize("path", [lambda *args: attend(*args)[0], attend_fused], ids=["explicit", "fused"])
def test_padding_keys_and_values_change_nothing(path, dtype, keep):
    query, key, value = draw_heads(dtype)
    padding = ~keep[:, None, :, None]
    before = path(query, key, value, keep)
    after = path(query, key.masked_fill(padding, 9.0), value.masked_fill(padding, -9.0), keep)
    assert_close(after, before, ROUNDING[dtype])


@pytest.mark.parametrize("path", [lambda *args: attend(*args)[0], attend_fused], ids=["explicit", "fused"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_text_without_tokens_gives_zeros_and_finite_gradients(path, with_bias):
    keep = torch.tensor([[True, False, True, True, True], [False] * 5])
    tensors = [tensor.requires_grad_() for tensor in draw_heads(torch.float32)]
    heads = path(*tensors, keep, torch.randn(3, 5, 5) if with_bias else None)
    assert (heads[1] == 0).all()
    for gradient in torch.autograd.grad(heads.square().sum(), tensors):
        assert gradient.isfinite().all()
        assert (gradient[1] == 0).all()


@pytest.mark.parametrize("path", [lambda *args: attend(*args)[0], attend_fused], ids=["explicit", "fused"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_padding_and_bias_leave_no_key_are_zero_and_have_finite_gradients(path, dtype, mask):
    # Causal, and nothing for query 3. In a text whose first token is padding, query 0 has no key either.
    bias = torch.zeros(5, 5, dtype=dtype).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    bias[3] = -torch.inf
    bias.requires_grad_()
    mask = None if mask is None else mask.flip(1)
    tensors = [tensor.requires_grad_() for tensor in draw_heads(dtype)]
    heads = path(*tensors, mask, bias)
    empty = torch.tensor([[False, False, False, True, False]] * 2)
    if mask is not None:
        empty[0, 0] = True
    assert torch.equal((heads == 0).all(-1), empty[:, None].expand(2, 3, 5))
    for gradient in torch.autograd.grad(heads.square().sum(), (*tensors, bias)):
        assert gradient.isfinite().all()


def test_a_bias_of_minus_infinity_equals_leaving_the_key_out(dtype, keep):
    tensors = draw_heads(dtype)
    bias = torch.zeros(2, 1, 1, 5, dtype=dtype).masked_fill(~keep[:, None, None], -torch.inf)
    assert torch.equal(attention_weights(*tensors[:2], None, bias), attention_weights(*tensors[:2], keep))
    assert_close(attend_fused(*tensors, None, bias), attend_fused(*tensors, keep), ROUNDING[dtype])


def test_weights_are_returned_before_dropout_and_outputs_use_them_after():
    query, key, value = draw_heads(torch.float64)
    heads, weights = attend(query, key, value, dropout=0.5)
    assert_close(weights, attention_weights(query, key), 1e-15)
    assert not torch.allclose(heads, weights @ value)


@pytest.mark.parametrize("path", [lambda *args: attend(*args)[0], attend_fused], ids=["explicit", "fused"])
def test_dropout_keeps_the_mean_of_the_output(path):
    query, key, value = torch.zeros(1, 1, 400, 7), torch.zeros(1, 1, 50, 7), torch.ones(1, 1, 50, 1)
    output = path(query, key, value, None, None, 0.2)
    assert output.std() > 0.01
    assert abs(output.mean() - 1) < 0.02  # its standard error is .0035: 20,000 weights, each 0 or 1.25


def test_concat_puts_heads_side_by_side():
    heads = torch.randn(2, 3, 5, 11)
    for head in range(3):
        assert torch.equal(concat_heads(heads)[..., head * 11 : (head + 1) * 11], heads[:, head])


@pytest.mark.parametrize(("merge", "divisor"), [(sum_heads, 1), (mean_heads, 3)])
def test_sum_and_mean_equal_a_loop_over_heads(merge, divisor):
    heads = torch.randn(2, 3, 5, 11, dtype=torch.float64)
    expected = torch.zeros(2, 5, 11, dtype=torch.float64)
    for head in range(3):
        expected += heads[:, head] / divisor
    assert_close(merge(heads), expected, 1e-15)


def test_sum_does_not_mix_coordinates():
    heads = torch.zeros(2, 3, 5, 12)  # 12 divides by 3: neighbours of a head could be summed by mistake
    heads[:, :, :, 4] = 1.0
    expected = torch.zeros(2, 5, 12)
    expected[..., 4] = 3.0
    assert torch.equal(sum_heads(heads), expected)
