import pytest
import torch
from asserting import assert_close, randomise
from identiformer.models.layers import PRESETS, standard_layer
from torch import nn

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}  # of the largest entry; sums run in another order


def torch_layer(ours, d_model=12, num_heads=3, norm_first=False, activation="gelu"):
    """`nn.TransformerEncoderLayer` with the weights of our standard layer."""
    theirs = nn.TransformerEncoderLayer(
        d_model, num_heads, 17, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first
    )
    attention = ours.attention
    stacked = {
        f"self_attn.in_proj_{kind}": torch.cat(
            [getattr(part, kind) for part in (attention.query, attention.key, attention.value)]
        )
        for kind in ("weight", "bias")
    }
    parts = {
        "self_attn.out_proj": attention.output,
        "linear1": ours.feedforward.inner,
        "linear2": ours.feedforward.outer,
        "norm1": ours.norm1,
        "norm2": ours.norm2,
    }
    copied = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}
    theirs.load_state_dict(stacked | copied)
    return theirs


@pytest.fixture(params=[False, True], ids=["post-norm", "pre-norm"])
def norm_first(request):
    return request.param


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request):
    return request.param


def pair(norm_first, dtype, mode, activation="gelu"):
    ours = randomise(standard_layer(12, 3, d_feedforward=17, dropout=0.0, norm_first=norm_first, activation=activation))
    theirs = torch_layer(ours, norm_first=norm_first, activation=activation)
    return ours.to(dtype).train(mode), theirs.to(dtype).train(mode)


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_standard_equals_torch_forward_and_backward(norm_first, dtype, mode, padded, keep):
    ours, theirs = pair(norm_first, dtype, mode)
    keep = keep if padded else torch.ones_like(keep)
    hidden, probe = torch.randn(2, 5, 12, dtype=dtype), torch.randn(2, 5, 12, dtype=dtype)
    mine, other = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    output, expected = ours(mine, keep), theirs(other, src_key_padding_mask=~keep)
    assert_close(output[keep], expected[keep], TOLERANCE[dtype])
    (output * probe)[keep].sum().backward()
    (expected * probe)[keep].sum().backward()
    assert_close(mine.grad, other.grad, TOLERANCE[dtype])
    mine = gradients_in_their_names(ours)
    for name, parameter in theirs.named_parameters():
        assert_close(mine[name], parameter.grad, 10 * TOLERANCE[dtype])  # summed over positions


def gradients_in_their_names(ours):
    attention, gradients = ours.attention, {}
    for kind in ("weight", "bias"):
        projections = [getattr(part, kind).grad for part in (attention.query, attention.key, attention.value)]
        gradients[f"self_attn.in_proj_{kind}"] = torch.cat(projections)
        gradients[f"self_attn.out_proj.{kind}"] = getattr(attention.output, kind).grad
        gradients[f"linear1.{kind}"] = getattr(ours.feedforward.inner, kind).grad
        gradients[f"linear2.{kind}"] = getattr(ours.feedforward.outer, kind).grad
        gradients[f"norm1.{kind}"] = getattr(ours.norm1, kind).grad
        gradients[f"norm2.{kind}"] = getattr(ours.norm2, kind).grad
    return gradients


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@torch.no_grad()
def test_standard_equals_torch_on_its_inference_path(norm_first, dtype, activation, keep):
    ours, theirs = pair(norm_first, dtype, mode=False, activation=activation)
    hidden = torch.randn(2, 5, 12, dtype=dtype)
    assert_close(ours(hidden, keep)[keep], theirs(hidden, src_key_padding_mask=~keep)[keep], TOLERANCE[dtype])


def layer_of(preset, norm_first, dropout=0.0):
    return randomise(PRESETS[preset](12, 3, norm_first=norm_first, dropout=dropout))


@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
def test_nan_at_padding_reaches_no_output_and_no_gradient(preset, norm_first, need_weights, keep):
    layer, clean = layer_of(preset, norm_first), torch.randn(2, 5, 12)
    results = []
    for content in (0.0, torch.nan):
        layer.zero_grad()
        hidden = clean.masked_fill(~keep[..., None], content).requires_grad_()
        output = layer(hidden, keep, need_weights=need_weights)
        output = output[0] if need_weights else output
        output.square().sum().backward()  # at padded positions too: nothing that leaves the layer is NaN
        results.append([output, hidden.grad, *(parameter.grad for parameter in layer.parameters())])
    for with_nan, without in zip(results[1], results[0], strict=True):
        assert torch.equal(with_nan, without)


@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
@pytest.mark.parametrize(("half", "tolerance"), [(torch.float16, 2e-2), (torch.bfloat16, 1e-1)])  # some ten of its eps
def test_half_precision_keeps_padding_out(preset, norm_first, need_weights, half, tolerance, keep):
    layer, keep = layer_of(preset, norm_first), torch.cat([keep, torch.zeros(1, 5, dtype=torch.bool)])
    clean = torch.randn(3, 5, 12)
    expected = layer(clean, keep)
    layer.to(half)
    results = []
    for content in (0.0, torch.nan):
        layer.zero_grad()
        hidden = clean.to(half).masked_fill(~keep[..., None], content).requires_grad_()
        output = layer(hidden, keep, need_weights=need_weights)
        output = output[0] if need_weights else output
        output.square().sum().backward()
        results.append([output, hidden.grad, *(parameter.grad for parameter in layer.parameters())])
    for with_nan, without in zip(results[1], results[0], strict=True):
        assert torch.equal(with_nan, without)
        assert without.isfinite().all()
    assert_close(results[0][0][keep].float(), expected[keep], tolerance)


@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
def test_padding_does_not_change_kept_positions(preset, norm_first, need_weights, keep):
    layer, hidden = layer_of(preset, norm_first), torch.randn(2, 5, 12)
    other = torch.where(keep[..., None], hidden, 100 * torch.randn(2, 5, 12))
    first, second = (layer(states, keep, need_weights=need_weights) for states in (hidden, other))
    if need_weights:
        first, second = first[0], second[0]
    assert torch.equal(first[keep], second[keep])


def test_paths_agree_through_the_whole_layer(preset, norm_first, keep):
    layer, hidden = layer_of(preset, norm_first), torch.randn(2, 5, 12)
    explicit, weights = layer(hidden, keep, need_weights=True)
    assert_close(layer(hidden, keep), explicit, 1e-6)
    assert weights.shape == (2, 3, 5, 5)


@torch.no_grad()
def test_permuting_tokens_permutes_outputs(preset, norm_first, keep):
    layer, hidden, order = layer_of(preset, norm_first), torch.randn(2, 5, 12), torch.randperm(5)
    assert_close(layer(hidden[:, order], keep[:, order]), layer(hidden, keep)[:, order], 1e-6)


DROPPING = ["attention", "feedforward.dropout", "dropout"]


@pytest.mark.parametrize("place", DROPPING)
@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
@torch.no_grad()
def test_each_dropout_drops_in_training_alone(preset, norm_first, place, need_weights):
    layer, hidden = layer_of(preset, norm_first, dropout=0.4), torch.randn(2, 5, 12)
    silence_all_but(layer, place)

    def output():
        result = layer(hidden, need_weights=need_weights)
        return result[0] if need_weights else result

    assert not torch.allclose(output(), output())
    layer.eval()
    in_eval = output()
    assert torch.equal(output(), in_eval)
    silence_all_but(layer.train(), None)
    assert torch.equal(output(), in_eval)


def silence_all_but(layer, place):
    if place != "attention":
        layer.attention.dropout = 0.0
    for name, module in layer.named_modules():
        if isinstance(module, nn.Dropout) and name != place:
            module.p = 0.0


def test_residual_dropout_drops_both_parts(norm_first):
    layer = standard_layer(12, 3, dropout=0.0, norm_first=True)
    layer.dropout.p = 1.0
    hidden = torch.randn(2, 5, 12)
    assert torch.equal(layer(hidden), hidden)
