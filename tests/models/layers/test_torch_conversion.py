import warnings

import pytest
import torch
import torch.nn.functional as F
from asserting import assert_close, randomise
from identiformer.models import TorchEncoderLayer, from_torch, record_heads, standard_layer, to_torch
from identiformer.models.layers import PRESETS
from torch import nn

# PyTorch warns where its encoder cannot use nested tensors, and where it does.
pytestmark = pytest.mark.filterwarnings(
    "ignore:enable_nested_tensor is True", "ignore:The PyTorch API of nested tensors"
)

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}  # of the largest entry; sums run in another order
PADDING = torch.tensor([[False, False, False, True, True], [False] * 5])
OPTIONS = {
    "plain": {},
    "token first": {"batch_first": False},
    "pre-norm": {"norm_first": True},
    "gelu": {"activation": "gelu"},
    "silu": {"activation": F.silu},
    "tanh": {"activation": torch.tanh},
    "no bias": {"bias": False},
    "eps": {"layer_norm_eps": 0.3},
}


@pytest.fixture(params=OPTIONS)
def options(request):
    return {"batch_first": True, **OPTIONS[request.param]}


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request):
    return request.param


def theirs_of(options, dtype=torch.float32):
    return randomise(nn.TransformerEncoderLayer(12, 4, 17, **options)).to(dtype).eval()


def encoder_of(options, dtype=torch.float32):
    encoder = nn.TransformerEncoder(theirs_of(options), 3, nn.LayerNorm(12, eps=0.2))
    return randomise(encoder).to(dtype).eval()


def assert_equal_modules(actual, expected):
    """Equal parameters, bit by bit, and equal settings."""
    assert repr(actual) == repr(expected)
    names = [
        [(name, p.requires_grad, p.dtype) for name, p in module.named_parameters()] for module in (actual, expected)
    ]
    assert names[0] == names[1]
    assert [module.training for module in actual.modules()] == [module.training for module in expected.modules()]
    for mine, other in zip(actual.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine, other)
        assert mine.data_ptr() != other.data_ptr()


# Equal functions. PyTorch warns where its encoder cannot use nested tensors, and that they may change.

pytestmark = pytest.mark.filterwarnings(
    "ignore:enable_nested_tensor is True", "ignore:The PyTorch API of nested tensors"
)


@pytest.mark.parametrize("grad", [False, True], ids=["fast path", "slow path"])
def test_converted_layers_compute_the_same(options, dtype, grad):
    theirs = theirs_of(options, dtype)
    hidden, places = torch.randn(2, 5, 12, dtype=dtype), ~PADDING
    if not options["batch_first"]:
        hidden, places = hidden.transpose(0, 1), places.T
    with torch.set_grad_enabled(grad):
        expected = theirs(hidden, src_key_padding_mask=PADDING)[places]
        ours = from_torch(theirs)
        assert_close(ours(hidden, src_key_padding_mask=PADDING)[places], expected, TOLERANCE[dtype])
        assert torch.equal(to_torch(ours)(hidden, src_key_padding_mask=PADDING)[places], expected)


@torch.no_grad()
def test_converted_encoders_compute_the_same(options, dtype):
    theirs = encoder_of(options, dtype)
    hidden, places = torch.randn(2, 5, 12, dtype=dtype), ~PADDING
    if not options["batch_first"]:
        hidden, places = hidden.transpose(0, 1), places.T
    expected = theirs(hidden, src_key_padding_mask=PADDING)
    ours = from_torch(theirs)
    back = to_torch(ours)
    assert_close(ours(hidden, src_key_padding_mask=PADDING)[places], expected[places], TOLERANCE[dtype])
    assert torch.equal(back(hidden, src_key_padding_mask=PADDING), expected)  # at padding too: the same path
    assert back.use_nested_tensor == theirs.use_nested_tensor


@torch.no_grad()
def test_our_standard_layer_computes_the_same_as_theirs(dtype):
    ours = TorchEncoderLayer(randomise(standard_layer(12, 3, d_feedforward=17)), batch_first=True).to(dtype).eval()
    hidden = torch.randn(2, 5, 12, dtype=dtype)
    assert_close(to_torch(ours)(hidden), ours(hidden), TOLERANCE[dtype])


@torch.no_grad()
def test_heads_of_converted_layers_attend_as_theirs(options):
    theirs = theirs_of(options, torch.float64)
    hidden = torch.randn(2, 5, 12, dtype=torch.float64)
    ours = from_torch(theirs)
    with record_heads(ours) as records:
        ours(hidden)
    states = theirs.norm1(hidden) if theirs.norm_first else hidden
    _, expected = theirs.self_attn(states, states, states, average_attn_weights=False)
    assert_close(records[0].weights, expected, 1e-12)


@pytest.mark.parametrize("activation", [nn.GELU(), nn.ReLU(), nn.SiLU(), nn.Tanh(), torch.relu, F.tanh])
@torch.no_grad()
def test_activations_may_be_modules_or_functions(activation):
    theirs = theirs_of({"activation": activation}, torch.float64)
    hidden = torch.randn(2, 5, 12, dtype=torch.float64)
    for converted in (from_torch(theirs), to_torch(from_torch(theirs))):
        assert_close(converted(hidden), theirs(hidden), 1e-12)


# Round trips.


def test_there_and_back_is_the_same_layer(options, dtype):
    theirs = theirs_of(options | {"dropout": 0.3}, dtype).train()
    theirs.self_attn.dropout, theirs.dropout.p = 0.1, 0.2
    back = to_torch(from_torch(theirs))
    assert_equal_modules(back, theirs)
    assert (back.self_attn.dropout, back.self_attn.batch_first) == (0.1, options["batch_first"])
    assert (back.norm_first, back.activation_relu_or_gelu) == (theirs.norm_first, theirs.activation_relu_or_gelu)


def test_there_and_back_is_the_same_encoder(options, dtype):
    theirs = encoder_of(options, dtype)
    theirs.layers[1].requires_grad_(False)
    theirs.layers[2].train()
    back = to_torch(from_torch(theirs))
    assert_equal_modules(back, theirs)
    for name in ("num_layers", "enable_nested_tensor", "use_nested_tensor", "mask_check", "training"):
        assert getattr(back, name) == getattr(theirs, name)


@pytest.mark.parametrize("activation", ["gelu", "relu", "silu", "tanh"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_back_and_there_is_the_same_layer(activation, batch_first, norm_first):
    layer = standard_layer(12, 3, d_feedforward=17, dropout=0.3, activation=activation, norm_first=norm_first)
    ours = TorchEncoderLayer(randomise(layer), batch_first=batch_first)
    ours.layer.norm1.eps, ours.layer.norm2.eps, ours.layer.attention.dropout = 0.1, 0.2, 0.4
    ours.layer.attention.query.requires_grad_(False)
    again = from_torch(to_torch(ours))
    again.layer.attention.query.requires_grad_(False)  # theirs holds query, key and value as one: all are trained
    assert_equal_modules(again, ours)
    assert (again.batch_first, again.layer.norm_first, again.layer.attention.dropout) == (batch_first, norm_first, 0.4)


def test_gradients_of_converted_layers_train_what_theirs_train(options):
    theirs = theirs_of(options)
    theirs.linear1.requires_grad_(False)
    with torch.no_grad():
        ours = from_torch(theirs)
    assert not any(parameter.requires_grad for parameter in ours.layer.feedforward.inner.parameters())
    ours(torch.randn(2, 5, 12)).sum().backward()
    counts = [sum(p.numel() for p in module.parameters() if p.requires_grad) for module in (ours, theirs)]
    assert counts[0] == counts[1]


def test_converting_draws_no_random_numbers_and_gives_no_warning():
    theirs = encoder_of({"batch_first": True})
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_torch(from_torch(theirs))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("part", ["attention", "feedforward"])
def test_parts_without_bias_can_be_initialised_anew(part):
    layer = from_torch(theirs_of({"bias": False})).layer
    before = [parameter.clone() for parameter in getattr(layer, part).parameters()]
    getattr(layer, part).reset_parameters()
    for parameter, old in zip(getattr(layer, part).parameters(), before, strict=True):
        assert not torch.equal(parameter, old)


# What cannot be converted.


class Subclass(nn.TransformerEncoderLayer):
    """A layer of somebody's own."""


def changed(name, value, module=None):
    """A layer of theirs, or `module`, with one attribute replaced."""
    module = module or nn.TransformerEncoderLayer(12, 4, 17)
    owner, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(owner), leaf, value)
    return module


def ours_of(preset="standard", **options):
    return TorchEncoderLayer(PRESETS[preset](12, 3, **options))


FROM = {
    "another module": (lambda: nn.Linear(3, 4), "Linear cannot be converted: it must be a TransformerEncoderLayer"),
    "ours": (ours_of, "TorchEncoderLayer cannot be converted"),
    "a subclass": (lambda: Subclass(12, 4), "Subclass cannot be converted"),
    "a replaced part": (lambda: changed("linear1", nn.Bilinear(2, 3, 4)), "linear1 is a Bilinear"),
    "a replaced norm": (lambda: changed("norm2", nn.RMSNorm(12)), "norm2 is a RMSNorm"),
    "a replaced map": (lambda: changed("self_attn.out_proj", nn.Identity()), "self_attn.out_proj is a Identity"),
    "an unknown activation": (lambda: nn.TransformerEncoderLayer(12, 4, activation=F.mish), "mish.*gelu, relu, silu"),
    "an inexact GELU": (
        lambda: nn.TransformerEncoderLayer(12, 4, activation=nn.GELU("tanh")),
        "GELU in its exact form",
    ),
    "other attention": (lambda: changed("self_attn", nn.MultiheadAttention(12, 4, vdim=7)), "self_attn has kdim"),
    "an added key": (lambda: changed("self_attn", nn.MultiheadAttention(12, 4, add_bias_kv=True)), "add_bias_kv"),
    "an added zero": (lambda: changed("self_attn", nn.MultiheadAttention(12, 4, add_zero_attn=True)), "add_zero_attn"),
    "two dropouts": (lambda: changed("dropout2", nn.Dropout(0.5)), "dropout1 is 0.1 and dropout2 0.5"),
}
TO = {
    "theirs": (lambda: nn.TransformerEncoderLayer(12, 4), "TransformerEncoderLayer cannot be converted"),
    "no wrapper": (lambda: standard_layer(12, 3), "EncoderLayer cannot be converted: it must be a TorchEncoderLayer"),
    "summed heads": (lambda: ours_of("identifiable"), "merge_heads is 'sum'.*'concat' at d_model 12 and 3 heads"),
    "averaged heads": (lambda: ours_of("shared_value"), "merge_heads is 'mean'"),
    "small keys": (lambda: ours_of("small_key"), "d_key is 2.*has 4"),
    "large values": (lambda: ours_of(d_value=12), "d_value is 12.*has 4"),
    "a replaced part": (lambda: changed("layer.feedforward", nn.Linear(12, 12), ours_of()), "feedforward is a Linear"),
    "a bias missing": (lambda: changed("layer.attention.key.bias", None, ours_of()), "Some parts have a bias"),
}


@pytest.mark.parametrize("case", FROM)
def test_what_cannot_become_ours_is_named(case):
    make, message = FROM[case]
    with pytest.raises(ValueError, match=message):
        from_torch(make())


@pytest.mark.parametrize("case", TO)
def test_what_cannot_become_theirs_is_named(case):
    make, message = TO[case]
    with pytest.raises(ValueError, match=message):
        to_torch(make())


def test_fewer_value_heads_are_named():
    layer = ours_of()
    layer.layer.attention.num_value_heads = 1
    with pytest.raises(ValueError, match=r"num_value_heads is 1.*has 3"):
        to_torch(layer)


def test_the_layer_of_an_encoder_that_cannot_be_converted_is_named():
    encoder = encoder_of({"batch_first": True})
    encoder.layers[1].norm1 = nn.RMSNorm(12)
    with pytest.raises(ValueError, match="Layer 1: norm1 is a RMSNorm"):
        from_torch(encoder)
