import subprocess
import sys

from identiformer.train.data.tokenizer import train_word_tokenizer, vocabulary_hash

TEXTS = ["A fine film, a FINE one!", "the film's end: a fine mess", "once"]


def test_words_are_lower_cased_and_punctuation_stands_alone():
    tokenizer = train_word_tokenizer(TEXTS, vocab_size=100, max_length=20)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("A FINE, fine film").input_ids)
    assert tokens == ["[CLS]", "a", "fine", "[UNK]", "fine", "film"]  # the comma was seen once


def test_words_seen_once_are_unknown_and_the_size_is_a_limit():
    assert "once" not in train_word_tokenizer(TEXTS, 100, 20).get_vocab()
    small = train_word_tokenizer(TEXTS, 6, 20).get_vocab()
    assert len(small) == 6
    assert {"a", "fine"} <= small.keys()  # the two most frequent


def test_texts_are_cut_at_max_length_with_cls_counted():
    assert len(train_word_tokenizer(TEXTS, 100, 3)("a fine film", truncation=True).input_ids) == 3


def test_two_processes_make_one_vocabulary():
    code = (
        "from identiformer.train.data.tokenizer import *;"
        f"print(vocabulary_hash(train_word_tokenizer({TEXTS!r} * 9, 100, 20)))"
    )
    hashes = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout for _ in range(2)}
    assert hashes == {vocabulary_hash(train_word_tokenizer(TEXTS * 9, 100, 20)) + "\n"}
