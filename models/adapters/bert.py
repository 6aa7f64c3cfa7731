"""The adapter for the BERT family of transformers: absolute positions, four linear maps, heads concatenated."""

from typing import Any, NamedTuple

from torch import Tensor, nn

from ..layers.attention import MultiHeadAttention
from .base import Affine, Call, Heads, SwappedAttention, split_mask, take_over

KNOWS = "the attention of BERT, RoBERTa, XLM-RoBERTa, CamemBERT, Data2VecText, ELECTRA, ERNIE, DistilBERT and MPNet"


class _Parts(NamedTuple):
    """Where an attention module keeps its linear maps and what holds its numbers."""

    query: str
    key: str
    value: str
    output: str
    heads: str
    dropout: str


_BERT = _Parts("self.query", "self.key", "self.value", "output.dense", "self.num_attention_heads", "self.dropout")
# Classes that do nothing else, by name, so that no model has to be imported to be told apart.
_FAMILY = ("Bert", "Roberta", "XLMRoberta", "Camembert", "Data2VecText", "Electra", "Ernie")
PARTS = {f"{name}Attention": _BERT for name in _FAMILY} | {
    "DistilBertSelfAttention": _Parts("q_lin", "k_lin", "v_lin", "out_lin", "n_heads", "dropout"),
    "MPNetSelfAttention": _Parts("q", "k", "v", "o", "num_attention_heads", "dropout"),
}


def heads(module: nn.Module) -> Heads | None:
    """The heads of `module`, or None if it is not of the family, or a decoder's, or was swapped."""
    parts = PARTS.get(type(module).__name__)
    if parts is None or not _is_plain(module):
        return None
    query, key, value, output = (Affine.of(module.get_submodule(name)) for name in parts[:4])
    number, dropout = _get(module, parts.heads), _get(module, parts.dropout).p
    return Heads(query, key, value, output, number, _read, dropout, num_value_heads=number)


def replace(module: nn.Module, attention: MultiHeadAttention, model: nn.Module) -> None:
    """Let `attention` do the work of `module` in `model`."""
    parts = PARTS[type(module).__name__]
    names = [name.removeprefix("self.") for name in (parts.query, parts.key, parts.value, parts.dropout)]
    if parts is _BERT:  # the output map is a part of what adds the residual
        module.output.dense = nn.Identity()  # pyright: ignore
        take_over(module.get_submodule("self"), attention, _Swapped, names)
    else:
        take_over(module, attention, _Swapped, [*names, parts.output])


def _is_plain(module: Any) -> bool:
    attention = getattr(module, "self", module)
    theirs = all(type(part).__module__.startswith("transformers.models.") for part in (module, attention))
    return theirs and not getattr(module, "is_cross_attention", False) and not getattr(attention, "is_causal", False)


def _get(module: nn.Module, name: str) -> Any:
    owner, _, attribute = name.rpartition(".")
    return getattr(module.get_submodule(owner), attribute)


def _read(
    hidden_states: Tensor, attention_mask: Tensor | None = None, position_bias: Tensor | None = None, **_: Any
) -> Call:
    keep, bias = split_mask(attention_mask, len(hidden_states))
    if position_bias is not None:
        bias = position_bias if bias is None else position_bias + bias
    return Call(hidden_states, keep, bias)


class _Swapped(SwappedAttention):
    read = staticmethod(_read)
