"""Vocabularies: trained once on the train split and saved with the model, or a pretrained one."""

import hashlib
import json
from collections.abc import Callable, Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..errors import UserError, first_line

SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


def make_tokenizer(kind: str, texts: Iterable[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerBase:
    """Train a tokenizer of a kind on texts, or load a pretrained one. It cuts texts at `max_length` tokens.

    Args:
        kind: "word", "bpe" or "wordpiece"; anything else is the folder or hub name of a pretrained tokenizer.
        texts: The train split; it is gone through once or twice.
        vocab_size: Most tokens of a trained vocabulary, the four special ones counted.
        max_length: Longest text in tokens, special tokens counted.

    Raises:
        UserError: If there is no such tokenizer, or it has no padding, or takes no texts that long.
    """
    if kind not in TRAINED:
        return load_tokenizer(kind, max_length)
    tokenizer = TRAINED[kind](texts, vocab_size)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A",
        pair="[CLS] $A [SEP] $B",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=max_length, **SPECIAL)


def load_tokenizer(name: str, max_length: int) -> PreTrainedTokenizerBase:
    """A pretrained tokenizer by folder or hub name, cutting at `max_length`."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # libraries say in many ways that a file is not what it should be
        kinds = ", ".join(TRAINED)
        raise UserError(
            f"There is no tokenizer {name!r}: give {kinds}, a folder or a hub name ({first_line(error)})"
        ) from None
    if tokenizer.pad_token_id is None:
        raise UserError(f"The tokenizer {name!r} has no padding token: batches need one.")
    if max_length > tokenizer.model_max_length:
        limit = tokenizer.model_max_length
        raise UserError(f"data.max_length is {max_length}, but the tokenizer {name!r} takes {limit} tokens: lower it.")
    tokenizer.model_max_length = max_length
    return tokenizer


def vocabulary_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """A short hash of the tokens and their numbers."""
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16]


def _word(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Lower-cased words and punctuation marks that occur twice or more, the most frequent first."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(min_frequency=2, **_trainer_options(vocab_size))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte pairs: any text can be written, nothing is unknown."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, **_trainer_options(vocab_size))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _wordpiece(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Word pieces as BERT's, lower-cased."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # The trainer numbers pieces inside words in a random order, and breaks ties by number: give them numbers first.
    inside = sorted({f"##{letter}" for text in texts for letter in tokenizer.normalizer.normalize_str(text)} - {"## "})
    options = _trainer_options(vocab_size)
    options["special_tokens"] = [*options["special_tokens"], *inside]
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(**options))
    plain = Tokenizer(models.WordPiece(tokenizer.get_vocab(with_added_tokens=True), unk_token="[UNK]"))
    plain.normalizer, plain.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    plain.decoder = decoders.WordPiece()
    return plain


def _trainer_options(vocab_size: int) -> dict:
    return {"vocab_size": vocab_size, "special_tokens": list(SPECIAL.values()), "show_progress": False}


TRAINED: dict[str, Callable[[Iterable[str], int], Tokenizer]] = {"word": _word, "bpe": _bpe, "wordpiece": _wordpiece}
