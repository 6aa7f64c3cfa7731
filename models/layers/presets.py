"""The four encoder layers with names. `conf/layer/` holds the same sizes for the command line."""

from typing import TypedDict, Unpack

from .encoder_layer import EncoderLayer, build_encoder_layer


class LayerOptions(TypedDict, total=False):
    """What may be given to every preset; what is not given is the preset's own."""

    d_key: int | None
    d_value: int | None
    d_feedforward: int | None
    dropout: float
    activation: str
    norm_first: bool


def head_size(d_model: int, num_heads: int, parts: int = 1) -> int:
    """`d_model / (parts num_heads)`.

    Raises:
        ValueError: If it is not a whole number.
    """
    if d_model % (parts * num_heads):
        needed = "num_heads" if parts == 1 else f"{parts} num_heads"
        raise ValueError(f"d_model is {d_model} and num_heads {num_heads}: d_model must be a multiple of {needed}.")
    return d_model // (parts * num_heads)


def standard_layer(d_model: int, num_heads: int, **options: Unpack[LayerOptions]) -> EncoderLayer:
    """The layer of 1706.03762: `d_key = d_value = d_model / num_heads`, heads concatenated.

    Equals `nn.TransformerEncoderLayer` with the same weights. Options are those of `identifiable_layer`.
    """
    size = head_size(d_model, num_heads)
    return _build(d_model, num_heads, default_key=size, default_value=size, **options)


def small_key_layer(d_model: int, num_heads: int, **options: Unpack[LayerOptions]) -> EncoderLayer:
    """The decoupled *Con* layer of 2106.01269: as `standard_layer`, with half the key size."""
    small, size = head_size(d_model, num_heads, parts=2), head_size(d_model, num_heads)
    return _build(d_model, num_heads, default_key=small, default_value=size, **options)


def identifiable_layer(d_model: int, num_heads: int, **options: Unpack[LayerOptions]) -> EncoderLayer:
    """The *Add* layer of 2106.01269: `d_key` 16, `d_value = d_model`, heads truly added.

    Each head's weights are identifiable from its own output up to `d_model` tokens.

    Args:
        d_model: Width of the layer.
        num_heads: Number of attention maps.
        **options: Any of `d_key`, `d_value` (per head), `d_feedforward` (4 d_model), `dropout` (0.1),
            `activation` ("gelu") and `norm_first` (False).
    """
    return _build(d_model, num_heads, default_key=16, default_value=d_model, merge_heads="sum", **options)


def shared_value_layer(d_model: int, num_heads: int, **options: Unpack[LayerOptions]) -> EncoderLayer:
    """One value map of size `d_model` for all heads: the layer passes on `(mean of A_h) V`.

    Its averaged map is determined by what the layer passes on. Options are those of `identifiable_layer`.
    """
    return _build(
        d_model, num_heads, default_key=16, default_value=d_model, num_value_heads=1, merge_heads="mean", **options
    )


PRESETS = {
    "standard": standard_layer,
    "small_key": small_key_layer,
    "identifiable": identifiable_layer,
    "shared_value": shared_value_layer,
}


def _build(
    d_model: int,
    num_heads: int,
    *,
    default_key: int,
    default_value: int,
    num_value_heads: int | None = None,
    merge_heads: str = "concat",
    d_key: int | None = None,
    d_value: int | None = None,
    d_feedforward: int | None = None,
    dropout: float = 0.1,
    activation: str = "gelu",
    norm_first: bool = False,
) -> EncoderLayer:
    return build_encoder_layer(
        d_model=d_model,
        num_heads=num_heads,
        d_key=d_key or default_key,
        d_value=d_value or default_value,
        num_value_heads=num_value_heads or num_heads,
        merge_heads=merge_heads,
        d_feedforward=d_feedforward or 4 * d_model,
        dropout=dropout,
        activation=activation,
        norm_first=norm_first,
    )
