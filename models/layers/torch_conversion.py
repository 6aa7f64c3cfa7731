"""PyTorch's encoder layers as ours, and ours as PyTorch's, where they compute the same function."""

from collections.abc import Callable
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from .attention import MultiHeadAttention
from .encoder_layer import EncoderLayer, build_encoder_layer
from .feedforward import ACTIVATIONS, FeedForward
from .presets import head_size
from .torch_layer import TorchEncoderLayer

# Their parts and ours, and what each must be: a subclass may compute something else.
THEIRS = {
    "": nn.TransformerEncoderLayer,
    "self_attn": nn.MultiheadAttention,
    "self_attn.out_proj": NonDynamicallyQuantizableLinear,
    **dict.fromkeys(("linear1", "linear2"), nn.Linear),
    **dict.fromkeys(("norm1", "norm2"), nn.LayerNorm),
}
OURS = {
    "": TorchEncoderLayer,
    "layer": EncoderLayer,
    "layer.attention": MultiHeadAttention,
    **{f"layer.attention.{name}": nn.Linear for name in ("query", "key", "value", "output")},
    "layer.feedforward": FeedForward,
    **{f"layer.feedforward.{name}": nn.Linear for name in ("inner", "outer")},
    **{f"layer.{name}": nn.LayerNorm for name in ("norm1", "norm2")},
}
# Each of their parameters, and which of ours it holds, one below the other.
PARAMETERS = {
    theirs + kind: [f"{name}.{kind}" for name in ours.split()]
    for theirs, ours in {
        "self_attn.in_proj_": "attention.query attention.key attention.value",
        "self_attn.out_proj.": "attention.output",
        "linear1.": "feedforward.inner",
        "linear2.": "feedforward.outer",
        "norm1.": "norm1",
        "norm2.": "norm2",
    }.items()
    for kind in ("weight", "bias")
}
# Activations of `FeedForward` as functions; the first is the one that `to_torch` uses.
FUNCTIONS = {"gelu": (F.gelu,), "relu": (F.relu, torch.relu), "silu": (F.silu,), "tanh": (F.tanh, torch.tanh)}


def from_torch(module: nn.Module) -> nn.Module:
    """An `nn.TransformerEncoderLayer`, or an `nn.TransformerEncoder` of them, as ours, with copies of its weights.

    The result computes the same function and is called the same way. A layer becomes a `TorchEncoderLayer` around an
    `EncoderLayer` of the sizes of `standard_layer`, an encoder becomes an `nn.TransformerEncoder` of such layers.

    Raises:
        ValueError: If it cannot be converted: subclasses and replaced parts, which may compute something else; an
            activation that `FeedForward` does not know; parts of attention that ours does not have.
    """
    if type(module) is nn.TransformerEncoder:
        return _convert_layers(module, from_torch)
    _refuse_other_parts(module, THEIRS)
    assert isinstance(module, nn.TransformerEncoderLayer)
    layer = _ours_like(module)
    for theirs, ours in PARAMETERS.items():
        packed = _get(module, theirs)
        parts = [None] * len(ours) if packed is None else packed.chunk(len(ours))
        for name, part in zip(ours, parts, strict=True):
            _put(layer, name, part, packed is not None and packed.requires_grad)
    return TorchEncoderLayer(layer, batch_first=module.self_attn.batch_first).train(module.training)


def to_torch(module: nn.Module) -> nn.Module:
    """A `TorchEncoderLayer`, or an `nn.TransformerEncoder` of them, as PyTorch's own, with copies of its weights.

    It undoes `from_torch`, and takes every layer of the sizes of `standard_layer`: heads with values of their own,
    concatenated, with `d_key` and `d_value` of `d_model / num_heads`.

    Raises:
        ValueError: If it cannot be converted: other sizes, another merge, replaced parts, biases in some parts only.
    """
    if type(module) is nn.TransformerEncoder:
        return _convert_layers(module, to_torch)
    _refuse_other_parts(module, OURS)
    assert isinstance(module, TorchEncoderLayer)
    layer = _theirs_like(module)
    for theirs, ours in PARAMETERS.items():
        parts: list[Tensor] = [part for name in ours if (part := _get(module.layer, name)) is not None]
        _put(layer, theirs, torch.cat(parts) if parts else None, any(part.requires_grad for part in parts))
    return layer.train(module.training)


def _convert_layers(encoder: nn.TransformerEncoder, convert: Callable[[nn.Module], nn.Module]) -> nn.TransformerEncoder:
    layers = []
    for number, layer in enumerate(encoder.layers):
        try:
            layers.append(convert(layer))
        except ValueError as error:
            raise ValueError(f"Layer {number}: {error}") from None
    nested = encoder.enable_nested_tensor and isinstance(layers[0], nn.TransformerEncoderLayer)  # else it would warn
    converted = nn.TransformerEncoder(
        layers[0],  # pyright: ignore[reportArgumentType]
        num_layers=0,
        norm=deepcopy(encoder.norm),
        enable_nested_tensor=nested,
        mask_check=encoder.mask_check,
    ).train(encoder.training)
    converted.layers.extend(layers)
    converted.num_layers, converted.enable_nested_tensor = encoder.num_layers, encoder.enable_nested_tensor
    return converted


def _ours_like(module: nn.TransformerEncoderLayer) -> EncoderLayer:
    """Our layer with the sizes and settings of theirs, and no parameters yet."""
    attention = module.self_attn
    if attention.in_proj_weight is None or attention.bias_k is not None or attention.add_zero_attn:
        raise ValueError("self_attn has kdim, vdim, add_bias_kv or add_zero_attn: our attention has none of them.")
    if module.dropout1.p != module.dropout2.p:
        raise ValueError(f"dropout1 is {module.dropout1.p} and dropout2 {module.dropout2.p}: ours has one for both.")
    with torch.device("meta"):
        layer = build_encoder_layer(
            d_model=attention.embed_dim,
            num_heads=attention.num_heads,
            d_key=attention.head_dim,
            d_value=attention.head_dim,
            num_value_heads=attention.num_heads,
            merge_heads="concat",
            d_feedforward=module.linear1.out_features,
            dropout=module.dropout.p,
            activation=_activation_name(module.activation),
            norm_first=module.norm_first,
        )
    layer.attention.dropout, layer.dropout.p = attention.dropout, module.dropout1.p
    layer.norm1.eps, layer.norm2.eps = module.norm1.eps, module.norm2.eps
    return layer


def _theirs_like(module: TorchEncoderLayer) -> nn.TransformerEncoderLayer:
    """Their layer with the sizes and settings of ours, and no parameters yet."""
    layer, attention, feedforward = module.layer, module.layer.attention, module.layer.feedforward
    _refuse_other_sizes(attention)
    biases = [name for names in PARAMETERS.values() for name in names if name.endswith("bias")]
    if len({_get(layer, name) is None for name in biases}) == 2:
        raise ValueError("Some parts have a bias and some have none: nn.TransformerEncoderLayer has all or none.")
    with torch.device("meta"):
        theirs = nn.TransformerEncoderLayer(
            attention.d_model,
            attention.num_heads,
            feedforward.inner.out_features,
            dropout=feedforward.dropout.p,
            activation=FUNCTIONS[_activation_name(feedforward.activation)][0],
            batch_first=module.batch_first,
            norm_first=layer.norm_first,
        )
    theirs.self_attn.dropout, theirs.dropout1.p, theirs.dropout2.p = attention.dropout, layer.dropout.p, layer.dropout.p
    theirs.norm1.eps, theirs.norm2.eps = layer.norm1.eps, layer.norm2.eps
    return theirs


def _refuse_other_parts(module: nn.Module, parts: dict[str, type]) -> None:
    for name, kind in parts.items():
        if (found := type(module.get_submodule(name))) is not kind:
            what = f"{name} is a {found.__name__}" if name else f"A {found.__name__} cannot be converted"
            raise ValueError(
                f"{what}: it must be a {kind.__name__} itself, for another class may compute something else."
            )


def _refuse_other_sizes(attention: MultiHeadAttention) -> None:
    d_model, heads = attention.d_model, attention.num_heads
    size = head_size(d_model, heads)
    for name, theirs in {"merge_heads": "concat", "num_value_heads": heads, "d_key": size, "d_value": size}.items():
        if (ours := getattr(attention, name)) != theirs:
            raise ValueError(
                f"{name} is {ours!r}: nn.TransformerEncoderLayer has {theirs!r} at d_model {d_model} and {heads} heads."
            )


def _activation_name(activation: object) -> str:
    """The name in `ACTIVATIONS` of an activation, given as a function or a module."""
    exact = getattr(activation, "approximate", "none") == "none"
    for name, kind in ACTIVATIONS.items():
        if activation in FUNCTIONS[name] or (type(activation) is kind and exact):
            return name
    raise ValueError(
        f"activation is {activation}: only {', '.join(ACTIVATIONS)} can be converted, GELU in its exact form."
    )


def _get(module: nn.Module, name: str) -> nn.Parameter | None:
    owner, _, leaf = name.rpartition(".")
    return getattr(module.get_submodule(owner), leaf)


def _put(module: nn.Module, name: str, values: Tensor | None, requires_grad: bool) -> None:
    owner, _, leaf = name.rpartition(".")
    parameter = None if values is None else nn.Parameter(values.detach().clone(), requires_grad)
    setattr(module.get_submodule(owner), leaf, parameter)
