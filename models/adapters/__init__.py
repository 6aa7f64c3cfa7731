"""One file per structure of attention module, so that nothing else names an architecture.

An adapter has `KNOWS`, what it is for in a few words, and `heads(module)`, which gives the `Heads` of an attention
module or None where it does not know the module. To add one, write that file and list it here.
"""

from collections.abc import Iterator

from torch import nn

from . import bert, modernbert, ours, pytorch
from .base import Affine, Call, Heads

ADAPTERS = (ours, bert, modernbert, pytorch)

__all__ = ["ADAPTERS", "Affine", "Call", "Heads", "attention_modules", "encoder_layers", "heads"]


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
