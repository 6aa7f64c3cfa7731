import pytest
import torch
from asserting import assert_close
from identiformer.models import record_states
from identiformer.models.recording import position_embedding
from small_models import ENCODERS, FAMILY, KEEP, OURS, STRUCTURES, TEXTS, TRANSFORMERS, run, shared_model
from torch import nn


def states_of(model, texts=TEXTS, keep=KEEP):
    with record_states(model) as states:
        run(model, texts, keep)
    return states


@pytest.mark.parametrize("name", [*TRANSFORMERS, *OURS])
def test_hidden_states_equal_those_that_the_model_returns(name):
    model = shared_model(name)
    with torch.no_grad():
        expected = model(TEXTS, KEEP.long(), output_hidden_states=True).hidden_states
    states = states_of(model)
    assert len(states) == len(expected) == 3
    for state, other in zip(states[:2], expected[:2], strict=True):  # a last norm may stand after the last layer
        assert_close(state[KEEP], other[KEEP], 1e-12)


@pytest.mark.parametrize("name", ENCODERS)
def test_hidden_states_of_pytorchs_encoder_equal_layer_after_layer(name):
    model = shared_model(name)
    keep = torch.ones_like(KEEP)
    hidden = model.embedding(TEXTS) + model.position[: TEXTS.shape[1]]
    hidden = hidden if model.batch_first else hidden.transpose(0, 1)
    states = states_of(model, keep=keep)
    for layer, state in zip([None, *model.encoder.layers], states, strict=True):
        hidden = hidden if layer is None else layer(hidden)
        assert_close(state, hidden.detach(), 1e-12)


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_text_has_the_states_that_it_has_alone(name):
    model = shared_model(name)
    token_first = name == "encoder, token first"
    together, alone = states_of(model), states_of(model, TEXTS[1:2, :6], KEEP[1:2, :6])
    for state, other in zip(together, alone, strict=True):
        state, other = (part.transpose(0, 1) if token_first else part for part in (state, other))
        assert_close(state[1, :6], other[0], 1e-12)


@pytest.mark.parametrize("name", ["Bert", "encoder", "standard"])
def test_the_model_gives_what_it_gives_and_is_left_as_it_was(name):
    model = shared_model(name)
    expected = run(model)
    with record_states(model):
        assert torch.equal(run(model), expected)
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_model_without_known_attention_says_what_is_known():
    with pytest.raises(ValueError, match="holds no attention module"), record_states(nn.Linear(3, 4)):
        pass


@pytest.mark.parametrize("length", [2, 9])
@pytest.mark.parametrize("name", [*FAMILY, *OURS])
def test_the_embedding_of_positions_is_found(name, length):
    model = shared_model(name)
    found = position_embedding(model, TEXTS[:1, :length])
    (expected,) = [part for path, part in model.named_modules() if path.split(".")[-1].startswith("position")]
    assert found is expected


@pytest.mark.parametrize("name", ["ModernBert", *ENCODERS])
def test_positions_that_no_module_embeds_are_not_found(name):
    assert position_embedding(shared_model(name), TEXTS[:1]) is None


def test_layers_that_are_no_items_of_a_list_are_refused():
    class Single(nn.Module):
        def __init__(self, whole):
            super().__init__()
            self.embedding, self.layer = whole.encoder.embeddings.word, whole.encoder.layers[0]

        def forward(self, input_ids):
            return self.layer(self.embedding(input_ids))

    model = Single(shared_model("standard"))
    with pytest.raises(ValueError, match="The layers of Single were not found"), record_states(model):
        model(TEXTS)
