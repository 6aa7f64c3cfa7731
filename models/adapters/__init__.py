"""One file per structure of attention module, so that nothing else names an architecture.

An adapter has

- `KNOWS`, what it is for in a few words;
- `heads(module)`, which gives the `Heads` of an attention module, or None where it does not know the module;
- `replace(module, attention, model)`, which lets a `MultiHeadAttention` of ours do that module's work in `model`: the
  module stays the same object, takes the same arguments and gives the same outputs.

To add one, write that file and list it here. For a module of transformers that holds four linear maps by other names, a
line in the table of `bert.py` is enough.
"""

from collections.abc import Iterator

from torch import nn

from ..layers.attention import MultiHeadAttention
from . import bert, modernbert, ours, pytorch
from .base import Affine, Call, Heads

ADAPTERS = (ours, bert, modernbert, pytorch)

__all__ = ["ADAPTERS", "Affine", "Call", "Heads", "attention_modules", "encoder_layers", "heads", "replace"]


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The attention modules of `model` that an adapter knows, in the order of its layers.

    Raises:
        ValueError: If there is none; the message says what is known.
    """
    found = list(dict.fromkeys(_outermost(model)))
    if not found:
        known = "; ".join(adapter.KNOWS for adapter in ADAPTERS)
        raise ValueError(f"{type(model).__name__} holds no attention module that can be read. Known are: {known}.")
    return found


def encoder_layers(model: nn.Module) -> list[nn.Module]:
    """The encoder layers around the `attention_modules` of `model`: items of its module lists, or else `model` itself.

    Raises:
        ValueError: If there is none; the message says what is known.
    """
    names = {module: name for name, module in model.named_modules()}
    return [_listed(model, names[module]) for module in attention_modules(model)]


def heads(module: nn.Module) -> Heads | None:
    """What the first adapter that knows `module` says of its heads; None if none does."""
    return next((found for adapter in ADAPTERS if (found := adapter.heads(module))), None)


def replace(module: nn.Module, attention: MultiHeadAttention, model: nn.Module) -> None:
    """Let `attention` do the work of `module`, one of the `attention_modules` of `model`.

    Raises:
        ValueError: If the module does what no `MultiHeadAttention` can.
    """
    next(adapter for adapter in ADAPTERS if adapter.heads(module)).replace(module, attention, model)


def _outermost(module: nn.Module) -> Iterator[nn.Module]:
    """Modules that an adapter knows, but none inside another."""
    if heads(module):
        yield module
    else:
        for child in module.children():
            yield from _outermost(child)


def _listed(model: nn.Module, name: str) -> nn.Module:
    """The innermost module around `name` that is an item of a list; `model` if there is no list."""
    while name:
        parent = name.rpartition(".")[0]
        if isinstance(model.get_submodule(parent), nn.ModuleList | nn.Sequential):
            return model.get_submodule(name)
        name = parent
    return model
