import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from identiformer.models.identifiability import token_identifiability, tokens
from references import tokens as reference

TEXTS, LENGTH, WIDTH, WORDS = 40, 9, 7, 30
texts = torch.arange(TEXTS).repeat_interleave(LENGTH)
places = torch.arange(LENGTH).repeat(TEXTS)


@pytest.fixture(autouse=True)
def _short(request, monkeypatch):
    """Little learning where it is not what is tested."""
    if "learns" not in request.node.name:
        monkeypatch.setattr(tokens, "STEPS", 40)
        monkeypatch.setattr(tokens, "CHECK", 20)


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["cosine", "l2"])
def distance(request):
    return request.param


@pytest.fixture
def ids():
    return torch.randint(WORDS, (TEXTS * LENGTH,), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def inputs(ids):
    """Words and positions, summed."""
    return gaussian(WORDS, WIDTH)[ids] + gaussian(LENGTH, WIDTH, seed=1)[places]


# What probes find.


@pytest.mark.parametrize("probe", ["linear", "mlp"])
def test_a_probe_finds_everything_in_an_invertible_linear_map_of_the_inputs(inputs, distance, probe):
    states = inputs @ gaussian(WIDTH, WIDTH, seed=2) + 3 * gaussian(WIDTH, seed=3)
    found = token_identifiability(states[None], inputs, texts, probe=probe, distance=distance)
    assert [field.item() for field in found] == [1.0, 1.0, 1.0, 1 / LENGTH]
    assert not found.at_chance


def test_the_identity_does_not_find_what_a_linear_map_hides(inputs, distance):
    states = inputs @ gaussian(WIDTH, WIDTH, seed=2)
    assert token_identifiability(states[None], inputs, texts, probe="identity", distance=distance).upper < 0.6


def test_a_perceptron_learns_what_no_linear_map_does(distance):
    states = gaussian(TEXTS * LENGTH, 3)
    rates = {
        probe: token_identifiability(states[None], states**2, texts, probe=probe, distance=distance).rate
        for probe in ("linear", "mlp")
    }
    assert rates["linear"] < 0.4
    assert rates["mlp"] > 0.7


def test_states_wider_than_the_inputs_are_for_probes_that_learn(inputs):
    wide = inputs @ gaussian(WIDTH, WIDTH + 4)
    assert token_identifiability(wide[None], inputs, texts).rate == 1.0
    with pytest.raises(ValueError, match="States are 11 wide, inputs 7"):
        token_identifiability(wide[None], inputs, texts, probe="identity")


def test_a_map_learnt_from_fewer_tokens_than_it_has_numbers_misses(inputs):
    states = (inputs @ gaussian(WIDTH, WIDTH, seed=2))[None]
    wider = states @ gaussian(WIDTH, 12, seed=3) + 0.01 * gaussian(1, len(texts), 12, seed=4)
    few = token_identifiability(wider, inputs, texts, train_share=1e-9)  # one text
    assert few.rate < token_identifiability(wider, inputs, texts, train_share=0.5).rate == 1.0


def test_what_is_learnt_by_one_distance_can_be_looked_up_by_the_other(inputs):
    longer = (3 * inputs)[None]
    by_l2, by_cosine = (
        token_identifiability(longer, inputs, texts, probe="identity", distance="l2", lookup=lookup).rate
        for lookup in ("l2", "cosine")
    )
    assert by_l2 < by_cosine == 1.0


# Controls.


@pytest.mark.parametrize("probe", ["identity", "linear", "mlp"])
def test_states_that_hold_only_positions_are_at_chance_for_words_and_say_so(ids, distance, probe):
    positions = gaussian(LENGTH, WIDTH, seed=4)[places]
    words = gaussian(WORDS, WIDTH)[ids]
    assert token_identifiability(positions[None], words, texts, ids, probe, distance).at_chance
    assert token_identifiability(positions[None], positions, texts, None, probe, distance).rate == 1.0


@pytest.mark.parametrize("probe", ["identity", "linear"])
def test_an_equal_word_counts_with_ids_and_is_a_tie_without(distance, probe):
    order = torch.stack([torch.randperm(WORDS)[:LENGTH] for _ in range(TEXTS)])
    order[:, 3] = order[:, 5]  # so that 7 of 9 tokens of every text are there once
    ids = order.flatten()
    words = gaussian(WORDS, WIDTH)[ids]
    states = words if probe == "identity" else words @ gaussian(WIDTH, WIDTH, seed=2)
    with_ids = token_identifiability(states[None], words, texts, ids, probe, distance)
    assert (with_ids.rate, with_ids.chance) == (1.0, 2 / 9)
    assert token_identifiability(states[None], words, texts, None, probe, distance).rate == pytest.approx(7 / 9)


def test_chance_is_the_share_of_the_most_frequent_word():
    ids = torch.tensor([[4, 4, 4, 7, 8, 9, 1, 2, 3]]).expand(TEXTS, -1).flatten()
    states = gaussian(1, TEXTS * LENGTH, WIDTH)
    assert token_identifiability(states, states[0], texts, ids, "identity").chance == 3 / 9


# The search.


@given(
    number=st.integers(1, 12),
    lookup=st.sampled_from(["cosine", "l2"]),
    equal=st.booleans(),
    seed=st.integers(0, 999),
)
def test_the_search_equals_the_reference_twin(number, lookup, equal, seed):
    generator = np.random.default_rng(seed)
    mapped, inputs = generator.normal(size=(2, number, 3))
    own, ids = generator.integers(3, size=number), generator.integers(4, size=number)
    inputs = inputs[generator.integers(number, size=number)] if equal else inputs
    expected = reference.found(mapped, inputs, own, ids, lookup)
    tensors = (torch.from_numpy(array) for array in (inputs, own, ids))
    found = tokens._Search(*tensors, lookup).found(torch.from_numpy(mapped)[None], torch.arange(number))
    assert found.tolist() == [expected.tolist()]


# What does not matter.


def test_the_order_of_tokens_does_not_matter_to_the_identity(inputs, ids, distance):
    states = torch.stack([inputs, inputs + gaussian(*inputs.shape, seed=5)])
    order = torch.randperm(len(texts))
    straight = token_identifiability(states, inputs, texts, ids, "identity", distance)
    shuffled = token_identifiability(states[:, order], inputs[order], texts[order], ids[order], "identity", distance)
    for field, other in zip(straight, shuffled, strict=True):
        assert torch.equal(field, other)


@pytest.mark.parametrize("probe", ["identity", "linear", "mlp"])
def test_lengths_do_not_matter_to_the_cosine(inputs, probe):
    states = (inputs + gaussian(*inputs.shape, seed=5))[None]
    lengths = 2.0 ** torch.randint(-3, 4, (len(texts), 1))  # powers of two, so that nothing is rounded
    scaled = lengths * states if probe == "identity" else 4 * states
    plain = token_identifiability(states, inputs, texts, probe=probe)
    assert torch.equal(plain.rate, token_identifiability(scaled, 8 * inputs, texts, probe=probe).rate)
    assert plain.rate == pytest.approx(
        token_identifiability(states, lengths * inputs, texts, probe=probe).rate, abs=0.05
    )
    assert 0.2 < plain.rate < 0.98


@pytest.mark.parametrize("probe", ["linear", "mlp"])
def test_a_layer_has_the_rate_that_it_has_alone(inputs, probe):
    states = torch.stack([inputs + noise * gaussian(*inputs.shape, seed=5) for noise in (0.5, 1, 2)])
    together = token_identifiability(states, inputs, texts, probe=probe)
    alone = token_identifiability(states[1:2], inputs, texts, probe=probe)
    assert together.rate[0] > together.rate[1] > together.rate[2]
    for field, other in zip(together, alone, strict=True):
        assert torch.equal(field[1:2], other)


def test_texts_of_one_token_are_left_out(inputs):
    states = (inputs + gaussian(*inputs.shape, seed=5))[None]
    lone = torch.arange(100, 105)
    more = token_identifiability(
        torch.cat([states, states[:, :5]], 1), torch.cat([inputs, inputs[:5]]), torch.cat([texts, lone])
    )
    for field, other in zip(token_identifiability(states, inputs, texts), more, strict=True):
        assert torch.equal(field, other)


def test_the_seed_is_all_that_is_random(inputs):
    states = (inputs + gaussian(*inputs.shape, seed=5))[None]
    before = torch.get_rng_state()
    rates = [token_identifiability(states, inputs, texts, probe="mlp", seed=seed).rate for seed in (0, 0, 1)]
    assert torch.equal(before, torch.get_rng_state())
    assert rates[0] == rates[1] != rates[2]


def test_states_that_do_not_vary_hold_nothing(inputs, distance):
    found = token_identifiability(torch.ones(1, len(texts), WIDTH), inputs, texts, distance=distance)
    assert found.rate == pytest.approx(1 / LENGTH)
    assert found.at_chance


# Intervals.


def test_19_of_20_intervals_hold_the_true_rate():
    """Texts of a rate each, around .7, and of different lengths."""
    generator, held = torch.Generator().manual_seed(0), []
    for seed in range(200):
        lengths = torch.randint(5, 40, (45,), generator=generator)
        own = torch.arange(45).repeat_interleave(lengths)
        rate = (0.7 + 0.15 * torch.randn(45, generator=generator)).clamp(0.4, 1)[own]
        found = torch.rand(len(own), generator=generator) < rate
        interval = tokens._rates(found[None], own, torch.arange(len(own)), seed)
        held.append((interval.lower <= 0.7) & (interval.upper >= 0.7))
    assert 0.90 <= torch.cat(held).double().mean() <= 0.98


# What is refused.


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"probe": "quadratic"}, "There is no probe 'quadratic': choose one of identity, linear, mlp."),
        ({"distance": "l1"}, "There is no distance 'l1': choose cosine or l2."),
        ({"lookup": "l1"}, "There is no distance 'l1'"),
        ({"train_share": 0.0}, "0 < train_share <= 1"),
        ({"hidden": 0}, "hidden > 0, not train_share 1.0, dropout 0.1, hidden 0"),
        ({"dropout": 1.0}, "0 <= dropout < 1"),
    ],
)
def test_an_option_that_is_none_is_refused(inputs, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        token_identifiability(inputs[None], inputs, texts, **options)


def test_two_texts_are_too_few(inputs):
    with pytest.raises(ValueError, match="Texts of two tokens or more: 2; it takes at least 3"):
        token_identifiability(inputs[None], inputs, texts % 2)


def test_a_number_that_is_not_finite_is_refused_with_its_layer(inputs):
    states = torch.stack([inputs, inputs, inputs])
    states[1, 4, 2] = torch.inf
    with pytest.raises(ValueError, match="The states of layer 1 hold a number that is not finite"):
        token_identifiability(states, inputs, texts)
    with pytest.raises(ValueError, match="The inputs hold"):
        token_identifiability(states[:1], states[1], texts)
