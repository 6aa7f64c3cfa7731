import copy
from functools import cache

import numpy as np
import pytest
import torch
from asserting import assert_close, randomise
from identiformer.models import hidden_token_attribution, standard_layer, swap_encoder_layers
from identiformer.models.adapters import encoder_layers
from identiformer.models.identifiability import context_profile
from references.attribution import contributions as by_gradients
from small_models import ENCODERS, KEEP, STRUCTURES, TEXTS, TorchClassifier, shared_model, small_model
from torch import nn

BATCH = {"input_ids": TEXTS, "attention_mask": KEEP.long()}
LENGTHS = KEEP.sum(1).tolist()


KINDS = ("Bert", "DistilBert", "MPNet", "ModernBert", "encoder", "encoder, token first", "identifiable")


@pytest.fixture(params=KINDS)
def model(request):
    """A classifier of each kind of layers in turn, in float64."""
    return shared_model(request.param)


@cache
def found_in(model, probes=None):
    """The attribution of a shared model on `BATCH`."""
    return hidden_token_attribution(model, BATCH, probes)


def embedded(model, ids):
    """The input of the first layer, seen from outside, and the call of every layer."""
    calls = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True)
        for layer in encoder_layers(model)
    ]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    return calls


def layers_by_hand(model, ids):
    """From a text's embeddings *(n, d)* to all states: each layer called with what the last gave."""
    calls, token_first = embedded(model, ids), isinstance(model, TorchClassifier) and not model.batch_first

    def run(place, hidden):
        (_, *args), kwargs = calls[place]
        output = encoder_layers(model)[place](hidden.unsqueeze(1 if token_first else 0), *args, **kwargs)
        return (output if isinstance(output, torch.Tensor) else output[0]).flatten(0, 1)

    def states(hidden):
        found = []
        for place in range(len(calls)):
            hidden = run(place, hidden)
            found.append(hidden)
        return found

    return states, run, [args[0].flatten(0, 1) for args, _ in calls]


def kept(matrix, text):
    return matrix[text, : LENGTHS[text], : LENGTHS[text]]


ALIKE = {"XLMRoberta", "Camembert", "Data2VecText", "Ernie"}  # their layers are BERT's


@pytest.mark.parametrize("name", sorted({*STRUCTURES} - ALIKE))
def test_contributions_of_the_embedding_equal_a_loop_over_gradients(name):
    model = shared_model(name)
    found = found_in(model).contributions
    states, _, inputs = layers_by_hand(model, TEXTS[1:2, : LENGTHS[1]])
    for mine, expected in zip(found, by_gradients(states, inputs[0]), strict=True):
        np.testing.assert_allclose(kept(mine, 1), expected, atol=1e-8)


def test_contributions_of_the_previous_layer_equal_a_loop_over_gradients(model):
    found = hidden_token_attribution(model, BATCH, source="previous").contributions
    _, run, inputs = layers_by_hand(model, TEXTS[1:2, : LENGTHS[1]])
    for place, mine in enumerate(found):
        (expected,) = by_gradients(lambda hidden, place=place: [run(place, hidden)], inputs[place])
        np.testing.assert_allclose(kept(mine, 1), expected, atol=1e-8)


@pytest.mark.parametrize("probes", [None, 4])
def test_rows_of_tokens_sum_to_1_and_padding_is_0(model, probes):
    found = found_in(model, probes)
    for contributions, errors in zip(*found, strict=True):
        assert contributions.dtype == torch.float64
        assert_close(contributions.sum(-1), KEEP.double(), 1e-12)
        assert not contributions.masked_select(~(KEEP[..., None] & KEEP[:, None])).any()
        assert not errors.masked_select(~(KEEP[..., None] & KEEP[:, None])).any()
        assert errors.any() == (probes is not None)


def test_batch_mates_and_the_content_of_padding_contribute_exactly_nothing(model):
    found = found_in(model, 4)
    changed = TEXTS.roll(1, 1)
    changed[1] = TEXTS[1].where(KEEP[1], changed[1])
    other = hidden_token_attribution(model, BATCH | {"input_ids": changed}, probes=4)
    for mine, expected in zip(other.contributions, found.contributions, strict=True):
        assert torch.equal(mine[1], expected[1])
        assert not torch.equal(mine[0], expected[0])


@pytest.mark.parametrize("probes", [None, 4])
def test_a_text_alone_has_the_numbers_that_it_has_in_a_batch(model, probes):
    found = found_in(model, probes).contributions
    for text in (1, 2):
        alone = {"input_ids": TEXTS[text : text + 1, : LENGTHS[text]]}
        for mine, expected in zip(found, hidden_token_attribution(model, alone, probes).contributions, strict=True):
            assert_close(kept(mine, text), expected[0], 1e-6)  # ModernBERT's positions are in float32


@pytest.mark.parametrize("name", ["Bert", "encoder, token first"])
def test_estimates_lie_around_the_exact_numbers_as_their_errors_say(name):
    model = shared_model(name)
    exact, squares = found_in(model).contributions, []
    for seed in range(6):
        found = hidden_token_attribution(model, BATCH, probes=64, seed=seed)
        for mine, error, expected in zip(*found, exact, strict=True):
            squares.append(((mine - expected) / error)[error > 1e-9].square().mean())
    # 1 on average; one seed's, of entries that share their probes, is anything from .3 to 3.
    assert 0.6 < torch.stack(squares).mean() < 1.6


def test_a_text_of_no_tokens_among_others_has_no_contributions(model):
    keep = KEEP.clone()
    keep[1] = False
    found = hidden_token_attribution(model, BATCH | {"attention_mask": keep.long()}).contributions
    for mine, expected in zip(found, found_in(model).contributions, strict=True):
        assert not mine[1].any()
        assert_close(mine[[0, 2]], expected[[0, 2]], 1e-12)


def test_texts_of_length_0_work(config_of):
    from identiformer.models import IdentiformerModel

    empty = {"input_ids": torch.zeros(2, 0, dtype=torch.long)}
    found = hidden_token_attribution(IdentiformerModel(config_of("standard")), empty)
    assert [mine.shape for mine in found.contributions] == [(2, 0, 0)] * 2


# Attention that a mask fixes, on the layers of PyTorch.


def encoder(**options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 3, 17, **options)
    return randomise(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)).double().eval()


def test_attention_fixed_to_the_identity_leaves_every_token_to_itself():
    batch = {"src": torch.randn(5, 2, 12), "mask": ~torch.eye(5, dtype=torch.bool)}
    for found in hidden_token_attribution(encoder(), batch).contributions:
        assert torch.equal(found, torch.eye(5).double().expand(2, 5, 5))
        assert context_profile(found).not_led_by_own.tolist() == [0.0, 0.0]


def test_attention_fixed_to_one_token_mixes_that_token_alone():
    mask = torch.full((5, 5), -2000.0)  # whose exponential is 0; -inf for a whole column would make it padding
    mask[:, 1] = 0
    batch = {"src": torch.randn(2, 5, 12), "mask": mask}
    for found in hidden_token_attribution(encoder(batch_first=True, norm_first=True), batch).contributions:
        expected = torch.eye(5, dtype=torch.bool) | (mask == 0)
        assert torch.equal(found > 0, expected.expand(2, 5, 5))
        assert (found[:, 1, 1] == 1).all()


@pytest.mark.parametrize("name", ["encoder", "encoder, token first"])
def test_a_swapped_encoder_that_computes_the_same_has_the_same_contributions(name):
    swapped = small_model(name)
    swap_encoder_layers(swapped)
    pairs = (found_in(model, 4).contributions for model in (swapped, shared_model(name)))
    for mine, expected in zip(*pairs, strict=True):
        assert_close(mine, expected, 1e-9)


def test_a_text_without_a_batch_is_one_of_a_batch():
    text = torch.randn(5, 12)
    for batch_first in (False, True):
        model = encoder(batch_first=batch_first)
        found, expected = (
            hidden_token_attribution(model, {"src": src}).contributions
            for src in (text, text.unsqueeze(0 if batch_first else 1))
        )
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_a_layer_alone_is_a_model():
    layer, hidden = randomise(standard_layer(12, 3)), torch.randn(2, 5, 12)
    found, previous = (
        hidden_token_attribution(layer, {"hidden": hidden, "keep": KEEP[:2, :5]}, source=source).contributions
        for source in ("embedding", "previous")
    )
    assert torch.equal(*found, *previous)


def test_attention_alone_takes_its_input_for_queries_keys_and_values_at_once():
    module = randomise(nn.MultiheadAttention(12, 3, batch_first=True)).double()
    hidden = torch.randn(1, 5, 12, dtype=torch.float64)
    (found,) = hidden_token_attribution(module, dict.fromkeys(("query", "key", "value"), hidden)).contributions
    (expected,) = by_gradients(lambda x: [module(x, x, x)[0]], hidden[0])
    np.testing.assert_allclose(found[0], expected, atol=1e-8)


# The model is left as it was.


def condition(model):
    """All that attribution switches."""
    backends = torch.backends.cuda
    return (
        [module.training for module in model.modules()],
        [(parameter.dtype, parameter.requires_grad, parameter.grad) for parameter in model.parameters()],
        [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        ["forward" in vars(module) for module in model.modules()],
        [id(tensor) for tensor in (*model.parameters(), *model.buffers())],
        torch.backends.mha.get_fastpath_enabled(),
        [backends.flash_sdp_enabled(), backends.mem_efficient_sdp_enabled(), backends.math_sdp_enabled()],
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
    )


@pytest.fixture
def changed():
    """A model in every condition that a user may have left it in, and PyTorch likewise."""
    model = small_model("Bert", hidden_dropout_prob=0.5).bfloat16().train()
    model.bert.embeddings.eval()
    model.classifier.weight.requires_grad_(False)
    torch.backends.cuda.enable_math_sdp(False)
    torch.backends.mha.set_fastpath_enabled(False)
    yield model
    torch.backends.cuda.enable_math_sdp(True)
    torch.backends.mha.set_fastpath_enabled(True)


def test_everything_is_as_it_was_afterwards(changed):
    before, weights = condition(changed), copy.deepcopy(changed.state_dict())
    hidden_token_attribution(changed, BATCH, probes=2)
    assert condition(changed) == before
    assert all(torch.equal(tensor, weights[name]) for name, tensor in changed.state_dict().items())


def stop(*_):
    raise KeyboardInterrupt


def test_everything_is_as_it_was_after_an_interruption(changed):
    before = condition(changed)
    with pytest.raises(KeyboardInterrupt):
        hidden_token_attribution(changed, BATCH, probes=2, progress=stop)
    assert condition(changed) == before


def test_everything_is_as_it_was_after_an_error_of_the_model(changed):
    before = condition(changed)
    with pytest.raises((IndexError, RuntimeError)):
        hidden_token_attribution(changed, {"input_ids": TEXTS + 100})
    assert condition(changed) == before


@pytest.mark.parametrize("name", ENCODERS)
def test_pytorchs_encoder_runs_its_own_kernel_again(name):
    model = small_model(name)
    assert torch.backends.mha.get_fastpath_enabled()
    before = model(TEXTS, KEEP)
    hidden_token_attribution(model, BATCH, probes=2)
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.equal(model(TEXTS, KEEP), before)


def test_dropout_autocast_and_inference_mode_play_no_part():
    model = small_model("standard")
    expected = hidden_token_attribution(model, BATCH, probes=2).contributions
    model.encoder.layers[0].dropout.p = 0.5
    model.train()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        found = hidden_token_attribution(model, BATCH, probes=2).contributions
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_a_model_in_half_precision_has_the_contributions_of_its_float32_copy(model):
    half = copy.deepcopy(model).bfloat16()
    found, expected = (hidden_token_attribution(each, BATCH, probes=2) for each in (half, copy.deepcopy(half).float()))
    assert all(torch.equal(*pair) for pair in zip(found.contributions, expected.contributions, strict=True))


# What is refused.


def test_an_unknown_source_is_refused():
    with pytest.raises(ValueError, match="source is 'input': choose 'embedding' or 'previous'"):
        hidden_token_attribution(shared_model("standard"), BATCH, source="input")


class InNoList(nn.Module):
    """Layers as attributes of their own, behind an embedding or not."""

    def __init__(self, embedding, last):
        super().__init__()
        self.embedding, self.first, self.second, self.last = (
            embedding,
            standard_layer(12, 3),
            standard_layer(12, 3),
            last,
        )

    def forward(self, x):
        return self.last(self.second(self.first(self.embedding(x))))


@pytest.mark.parametrize(
    ("embedding", "last", "x"),
    [
        (nn.Embedding(29, 12), nn.Identity(), TEXTS),
        (nn.Identity(), nn.AdaptiveAvgPool2d((1, 12)), torch.randn(3, 9, 12)),
    ],
)
def test_a_model_whose_layers_are_in_no_list_is_refused(embedding, last, x):
    with pytest.raises(ValueError, match="layers of InNoList were not found: they have to be items of a list"):
        hidden_token_attribution(InNoList(embedding, last), {"x": x})


def test_a_model_without_known_attention_is_refused():
    with pytest.raises(ValueError, match="Linear holds no attention module"):
        hidden_token_attribution(nn.Linear(2, 2), {})


def test_an_infinite_weight_is_named_by_its_layer():
    model = small_model("Bert")
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.weight[0, 0] = torch.inf
    with pytest.raises(ValueError, match="derivative of layer 1 is not finite"):
        hidden_token_attribution(model, BATCH, probes=2)
