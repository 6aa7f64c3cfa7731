import copy
import itertools
import math
import warnings

import pytest
import torch
from asserting import assert_close, randomise
from identiformer.models import TorchEncoderLayer, from_torch, record_heads
from identiformer.models.layers import PRESETS
from torch import nn

# 2 texts of 5 tokens, d_model 12, 3 heads. Each mask leaves every kept query a key, itself.
CAUSAL = torch.ones(5, 5).triu(1).bool()
GAPS = torch.tensor([[False, True, False, False, True], [True, False, False, True, False]] * 2 + [[False] * 5])
PADDING = torch.tensor([[False, False, True, False, True], [False] * 5])


def floating(closed, seed, dtype=torch.float32):
    """Random numbers to add to the scores, -inf where `closed`."""
    added = torch.randn(closed.shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return added.masked_fill(closed, -math.inf)


PER_HEAD = torch.stack([CAUSAL, GAPS & ~torch.eye(5).bool(), CAUSAL.T, GAPS & CAUSAL, CAUSAL, CAUSAL & CAUSAL.flip(0)])
MASKS = {
    "no mask": None,
    "bool": CAUSAL,
    "float": floating(GAPS & ~torch.eye(5).bool(), 1),
    "bool per head": PER_HEAD,
    "float per head": floating(PER_HEAD, 2),
}
PADDINGS = {
    "no padding": None,
    "bool padding": PADDING,
    "-inf padding": torch.zeros(2, 5).masked_fill(PADDING, -math.inf),
    "float padding": floating(PADDING, 3),
}


@pytest.fixture(params=MASKS)
def mask(request):
    return MASKS[request.param]


@pytest.fixture(params=PADDINGS)
def padding(request):
    return PADDINGS[request.param]


@pytest.fixture(params=[True, False], ids=["batch first", "token first"])
def batch_first(request):
    return request.param


def layer_of(preset, batch_first=True, norm_first=False, dropout=0.0):
    layer = PRESETS[preset](12, 3, d_feedforward=17, norm_first=norm_first, dropout=dropout)
    return TorchEncoderLayer(randomise(layer), batch_first=batch_first)


def encoder_of(preset, batch_first=True, **options):
    layer = layer_of(preset, batch_first, **options)
    return randomise(nn.TransformerEncoder(layer, 3, nn.LayerNorm(12), enable_nested_tensor=False))


def to(dtype, mask):
    """A mask with its floats in `dtype`."""
    return mask.to(dtype) if mask is not None and mask.is_floating_point() else mask


def kept(padding):
    """Which of the 2 x 5 tokens are texts."""
    if padding is None:
        return torch.ones(2, 5, dtype=torch.bool)
    return ~padding if padding.dtype == torch.bool else padding != -math.inf


def allowed_and_added(mask, padding):
    """What PyTorch's masks mean, one score at a time: whether it takes part, and what is added to it."""
    allowed, added = torch.ones(2, 3, 5, 5, dtype=torch.bool), torch.zeros(2, 3, 5, 5, dtype=torch.float64)
    masks = [given if given is None else given.tolist() for given in (mask, padding)]
    for b, h, q, k in itertools.product(*map(range, allowed.shape)):
        entries = [] if padding is None else [masks[1][b][k]]
        if mask is not None:
            entries.append(masks[0][q][k] if mask.dim() == 2 else masks[0][b * 3 + h][q][k])
        allowed[b, h, q, k] = not any(entry is True or entry == -math.inf for entry in entries)
        added[b, h, q, k] = sum(entry for entry in entries if isinstance(entry, float))
    return allowed, added


def explicit(layer, hidden, mask, padding):
    """The post-norm layer from its formula, every row of weights on its own; a row without keys attends to nothing."""
    attention = layer.attention
    query, key = (part(hidden).unflatten(-1, (3, -1)).transpose(1, 2) for part in (attention.query, attention.key))
    value = attention.value(hidden).unflatten(-1, (attention.num_value_heads, -1)).transpose(1, 2).expand(2, 3, 5, -1)
    heads = torch.zeros(2, 3, 5, attention.d_value, dtype=hidden.dtype)
    allowed, added = allowed_and_added(mask, padding)
    for b, h, q in itertools.product(range(2), range(3), range(5)):
        keys = allowed[b, h, q].nonzero()[:, 0]
        if len(keys):
            scores = key[b, h, keys] @ query[b, h, q] / math.sqrt(attention.d_key) + added[b, h, q, keys].to(hidden)
            heads[b, h, q] = scores.softmax(-1) @ value[b, h, keys]
    merged = {"concat": heads.transpose(1, 2).flatten(-2), "sum": heads.sum(1), "mean": heads.mean(1)}
    hidden = layer.norm1(hidden + attention.output(merged[attention.merge_heads]))
    return layer.norm2(hidden + layer.feedforward(hidden))


def called(module, hidden, *args, **kwargs):
    """`module` on *(batch, token, d_model)*, whatever it takes, and its output in that order."""
    batch_first = (module.layers[0] if hasattr(module, "layers") else module).batch_first
    output = module(hidden if batch_first else hidden.transpose(0, 1), *args, **kwargs)
    return output if batch_first else output.transpose(0, 1)


# Masks.


@torch.no_grad()
def test_masks_of_every_kind_equal_the_explicit_computation(preset, mask, padding):
    layer, hidden = layer_of(preset).double(), torch.randn(2, 5, 12, dtype=torch.float64)
    mask, padding = to(torch.float64, mask), to(torch.float64, padding)
    tokens = kept(padding)
    expected = explicit(layer.layer, hidden, mask, padding)
    assert_close(layer(hidden, mask, padding)[tokens], expected[tokens], 1e-12)


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
@torch.no_grad()
def test_equals_torchs_layer_under_every_mask(mode, norm_first, batch_first, mask, padding):
    theirs = nn.TransformerEncoderLayer(12, 3, 17, dropout=0.0, batch_first=batch_first, norm_first=norm_first)
    ours = from_torch(randomise(theirs).double().train(mode))
    hidden = torch.randn(2, 5, 12, dtype=torch.float64)
    mask, padding = to(torch.float64, mask), to(torch.float64, padding)
    places = kept(padding) if batch_first else kept(padding).T
    hidden = hidden if batch_first else hidden.transpose(0, 1)
    assert_close(ours(hidden, mask, padding)[places], theirs(hidden, mask, padding)[places], 1e-12)


@pytest.mark.parametrize("name", sorted(set(MASKS) - {"no mask"}))
@torch.no_grad()
def test_is_causal_changes_nothing_beside_a_mask_whatever_the_mask(name, padding):
    layer, hidden, mask = layer_of("identifiable"), torch.randn(2, 5, 12), MASKS[name]
    assert torch.equal(layer(hidden, mask, padding, is_causal=True), layer(hidden, mask, padding))


@torch.no_grad()
def test_one_text_without_a_batch_equals_a_batch_of_one(preset, batch_first):
    layer, hidden, padding = layer_of(preset, batch_first), torch.randn(5, 12), PADDING[0]
    dim = 0 if batch_first else 1
    for mask in (None, CAUSAL, PER_HEAD[:3]):
        expected = layer(hidden.unsqueeze(dim), mask, padding[None]).squeeze(dim)
        assert torch.equal(layer(hidden, mask, padding), expected)


@torch.no_grad()
def test_floating_masks_of_another_precision_are_taken_as_they_are():
    layer, hidden = layer_of("identifiable").double(), torch.randn(2, 5, 12, dtype=torch.float64)
    mask, padding = MASKS["float"], PADDINGS["float padding"]
    assert torch.equal(layer(hidden, mask, padding), layer(hidden, mask.double(), padding.double()))


@pytest.mark.parametrize("autocast", [False, True])
@torch.no_grad()
def test_half_precision_keeps_masks(preset, autocast):
    layer, hidden = layer_of(preset), torch.randn(2, 5, 12)
    expected = layer(hidden, CAUSAL, PADDING)[~PADDING]
    if not autocast:
        layer, hidden = layer.bfloat16(), hidden.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for mask, padding in ((CAUSAL, PADDING), (torch.zeros(5, 5).masked_fill(CAUSAL, -math.inf), PADDING)):
            assert_close(layer(hidden, mask, padding)[~PADDING], expected, 0.1)  # 8 bits, over a few sums


# Texts do not meet.


@pytest.mark.parametrize("content", [100.0, math.nan])
@torch.no_grad()
def test_padding_does_not_change_texts(preset, batch_first, content):
    encoder, hidden = encoder_of(preset, batch_first), torch.randn(2, 5, 12)
    other = hidden.masked_fill(PADDING[..., None], content)
    for mask in (None, CAUSAL):
        first, second = (called(encoder, states, mask, PADDING)[~PADDING] for states in (hidden, other))
        assert torch.equal(first, second)


@torch.no_grad()
def test_batch_mates_their_order_and_more_padding_change_nothing(preset, batch_first):
    encoder, hidden = encoder_of(preset, batch_first), torch.randn(2, 5, 12)
    output = called(encoder, hidden, CAUSAL, PADDING)
    turned = called(encoder, hidden.flip(0), CAUSAL, PADDING.flip(0)).flip(0)
    assert_close(turned[~PADDING], output[~PADDING], 1e-6)
    for text in range(2):
        tokens = ~PADDING[text]
        length = int(tokens.sum())
        alone = called(encoder, hidden[text : text + 1, tokens], CAUSAL[:length, :length])
        assert_close(alone[0], output[text][tokens], 1e-6)


LEFT = torch.tensor([[True, True, False, False, False], [False] * 5])
NO_KEYS = {
    "a text of padding": (None, torch.tensor([[True] * 5, [False] * 5])),
    "padding left of a causal mask": (CAUSAL, LEFT),
    "a mask that closes a row": (CAUSAL | (torch.arange(5) == 3)[:, None], None),
}


@pytest.mark.parametrize("case", NO_KEYS)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_rows_without_keys_attend_to_nothing_and_are_finite(preset, case, kind):
    masks = NO_KEYS[case]
    if kind == "float":
        masks = tuple(None if m is None else torch.zeros(m.shape).masked_fill(m, -math.inf) for m in masks)
    layer, hidden = layer_of(preset), torch.randn(2, 5, 12, requires_grad=True)
    with record_heads(layer) as records:
        output = layer(hidden, *masks)
    output.square().sum().backward()
    for tensor in (output, hidden.grad, *(parameter.grad for parameter in layer.parameters())):
        assert tensor.isfinite().all()
    allowed, _ = allowed_and_added(*masks)
    sums, some = records[0].weights.sum(-1), allowed.any(-1)
    assert not some.all()
    assert torch.allclose(sums, some.double(), atol=1e-12)
    expected = explicit(layer.layer, hidden, *masks)
    assert_close(output[kept(masks[1])], expected[kept(masks[1])], 1e-5)


# Gradients.


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_gradients_equal_torchs_those_of_a_floating_mask_too(mode, batch_first):
    theirs = randomise(nn.TransformerEncoderLayer(12, 3, 17, dropout=0.0, batch_first=batch_first)).double().train(mode)
    ours, results = from_torch(theirs), []
    hidden, probe = torch.randn(2, 5, 12, dtype=torch.float64), torch.randn(2, 5, 12, dtype=torch.float64)
    order = (lambda states: states) if batch_first else (lambda states: states.transpose(0, 1))
    for layer in (ours, theirs):
        states, mask = hidden.clone().requires_grad_(), MASKS["float per head"].double().requires_grad_()
        output = order(layer(order(states), mask, PADDINGS["-inf padding"].double()))
        (output * probe)[~PADDING].sum().backward()
        results.append([states.grad, mask.grad])
    for mine, other in zip(*results, strict=True):
        assert_close(mine, other, 1e-12)
    attention = ours.layer.attention
    stacked = torch.cat([part.weight.grad for part in (attention.query, attention.key, attention.value)])
    assert_close(stacked, theirs.self_attn.in_proj_weight.grad, 1e-11)  # summed over positions
    assert_close(attention.output.weight.grad, theirs.self_attn.out_proj.weight.grad, 1e-11)


# Inside nn.TransformerEncoder.


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
@torch.no_grad()
def test_an_encoder_is_its_layers_in_turn(preset, batch_first, mode, mask):
    encoder, hidden = encoder_of(preset, batch_first).train(mode), torch.randn(2, 5, 12)
    closed = torch.zeros(2, 5).masked_fill(PADDING, -math.inf)  # of the mask's type, or PyTorch warns
    padding = closed if mask is not None and mask.is_floating_point() else PADDING
    expected = hidden
    for layer in encoder.layers:
        expected = called(layer, expected, mask, padding)
    assert torch.equal(called(encoder, hidden, mask, padding)[~PADDING], encoder.norm(expected)[~PADDING])


def test_an_encoder_trains(preset, batch_first):
    encoder = encoder_of(preset, batch_first, dropout=0.1)
    called(encoder, torch.randn(2, 5, 12), CAUSAL, PADDING).square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in encoder.parameters())
    assert all((parameter.grad != 0).any() for name, parameter in encoder.named_parameters() if "key.bias" not in name)


def test_an_encoder_drops_in_training_alone(preset):
    encoder, hidden = encoder_of(preset, dropout=0.4), torch.randn(2, 5, 12)
    assert not torch.allclose(encoder(hidden), encoder(hidden))
    encoder.eval()
    assert torch.equal(encoder(hidden), encoder(hidden))


@torch.no_grad()
def test_copies_and_loaded_encoders_give_the_same(preset):
    encoder, hidden = encoder_of(preset).eval(), torch.randn(2, 5, 12)
    loaded = encoder_of(preset).eval()
    assert not torch.allclose(loaded(hidden), encoder(hidden))
    loaded.load_state_dict(encoder.state_dict())
    for other in (loaded, copy.deepcopy(encoder)):
        assert torch.equal(other(hidden, CAUSAL, PADDING), encoder(hidden, CAUSAL, PADDING))


def test_layers_of_an_encoder_start_equal_and_share_nothing():
    encoder = nn.TransformerEncoder(layer_of("identifiable"), 2, enable_nested_tensor=False)
    first, second = encoder.layers
    for mine, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(mine, other)
        assert mine.data_ptr() != other.data_ptr()
    assert set(first.state_dict()) == {f"layer.{name}" for name in first.layer.state_dict()}


def test_only_nested_tensors_are_warned_about():
    with pytest.warns(UserWarning, match="enable_nested_tensor is True"):
        nn.TransformerEncoder(layer_of("identifiable"), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder_of("identifiable").eval()(torch.randn(2, 5, 12), CAUSAL, PADDING)


@torch.no_grad()
def test_the_causal_mask_that_an_encoder_finds_is_used_as_it_is(preset, batch_first):
    encoder, hidden, seen = encoder_of(preset, batch_first), torch.randn(2, 5, 12), []
    for layer in encoder.layers:
        layer.register_forward_pre_hook(lambda *args: seen.append(args[2]["is_causal"]), with_kwargs=True)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    found, told, denied = (called(encoder, hidden, mask, is_causal=is_causal) for is_causal in (None, True, False))
    assert seen == [True] * 6 + [False] * 3
    assert torch.equal(found, denied)
    assert torch.equal(told, denied)


@torch.no_grad()
def test_heads_in_an_encoder_are_recorded_with_their_masks(preset, batch_first):
    encoder = encoder_of(preset, batch_first).eval()
    with record_heads(encoder) as records:
        called(encoder, torch.randn(2, 5, 12), CAUSAL, PADDING)
    allowed, _ = allowed_and_added(CAUSAL, PADDING)
    assert len(records) == 3
    for record in records:
        assert torch.equal(record.keep, ~PADDING)
        assert torch.equal(record.weights > 0, allowed)


# Mistakes.

MISTAKES = {
    "ids as a mask": (((2, 5, 12), CAUSAL.long(), None), r"src_mask is of torch.int64: give booleans"),
    "attention_mask": (((2, 5, 12), None, (~PADDING).long()), r"src_key_padding_mask is of torch.int64: give booleans"),
    "padding the other way": (((2, 5, 12), None, PADDING.T), r"src_key_padding_mask has shape \(5, 2\).*\(2, 5\)"),
    "a short mask": (((2, 5, 12), CAUSAL[:, :4], None), r"src_mask has shape \(5, 4\).*\(5, 5\) or \(6, 5, 5\)"),
    "a mask per text": (((2, 5, 12), PER_HEAD[:2], None), r"src_mask has shape \(2, 5, 5\).*\(5, 5\) or \(6, 5, 5\)"),
    "four dimensions": (((1, 2, 5, 12), None, None), "2 or 3 dimensions"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake):
    (shape, mask, padding), message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message):
        layer_of("identifiable")(torch.randn(shape), mask, padding)


def test_is_causal_without_a_mask_is_refused():
    with pytest.raises(ValueError, match="no src_mask"):
        layer_of("identifiable")(torch.randn(2, 5, 12), is_causal=True)
    with pytest.raises(ValueError, match="no src_mask"):
        encoder_of("identifiable")(torch.randn(2, 5, 12), is_causal=True)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused():
    nested = torch.nested.nested_tensor([torch.randn(5, 12), torch.randn(3, 12)])
    with pytest.raises(ValueError, match="not be nested"):
        layer_of("identifiable")(nested)
