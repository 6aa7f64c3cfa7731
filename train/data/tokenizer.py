"""Vocabularies, trained once on the train split and saved with the model."""

import hashlib
import json
from collections.abc import Iterable

from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


def train_word_tokenizer(texts: Iterable[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Lower-cased words and punctuation marks that occur twice or more, the most frequent first; [CLS] begins a text.

    Args:
        texts: The train split.
        vocab_size: Most words kept, the four special tokens counted.
        max_length: Longest text in tokens, [CLS] counted.
    """
    tokenizer = Tokenizer(WordLevel(unk_token=SPECIAL["unk_token"]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = list(SPECIAL.values())
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A",
        pair="[CLS] $A [SEP] $B",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=max_length, **SPECIAL)


def vocabulary_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """A short hash of the tokens and their numbers."""
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16]
