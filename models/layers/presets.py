"""The four encoder layers with names. `conf/layer/` holds the same sizes for the command line."""

from collections.abc import Callable
from typing import NamedTuple, TypedDict, Unpack

from .attention import MultiHeadAttention
from .encoder_layer import EncoderLayer, build_encoder_layer


class AttentionSizes(NamedTuple):
    """What tells one multi-head attention of a width and a number of heads from another."""

    d_key: int
    d_value: int
    num_value_heads: int
    merge_heads: str

    @classmethod
    def of(cls, attention: MultiHeadAttention) -> "AttentionSizes":
        """The sizes of an attention."""
        return cls(*(getattr(attention, name) for name in cls._fields))


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
    if num_heads < 1:
        raise ValueError(f"num_heads is {num_heads}: it must be at least 1.")
    if d_model % (parts * num_heads):
        needed = "num_heads" if parts == 1 else f"{parts} num_heads"
        raise ValueError(f"d_model is {d_model} and num_heads {num_heads}: d_model must be a multiple of {needed}.")
    return d_model // (parts * num_heads)


def _standard_sizes(d_model: int, num_heads: int) -> AttentionSizes:
    size = head_size(d_model, num_heads)
    return AttentionSizes(size, size, num_heads, "concat")


def _small_key_sizes(d_model: int, num_heads: int) -> AttentionSizes:
    return _standard_sizes(d_model, num_heads)._replace(d_key=head_size(d_model, num_heads, parts=2))


# From d_model and num_heads to the sizes of each preset.
SIZES: dict[str, Callable[[int, int], AttentionSizes]] = {
    "standard": _standard_sizes,
    "small_key": _small_key_sizes,
    "identifiable": lambda d_model, num_heads: AttentionSizes(16, d_model, num_heads, "sum"),
    "shared_value": lambda d_model, num_heads: AttentionSizes(16, d_model, 1, "mean"),
}


def standard_layer(d_model: int, num_heads: int, **options: Unpack[LayerOptions]) -> EncoderLayer:
    """The layer of 1706.03762: `d_key = d_value = d_model / num_heads`, heads concatenated.

    Equals `nn.TransformerEncoderLayer` with the same weights. Options are those of `identifiable_layer`.
    """
    return _build("standard", d_model, num_heads, **options)


def small_key_layer(d_model: int, num_heads: int, **options: Unpack[LayerOptions]) -> EncoderLayer:
    """The decoupled *Con* layer of 2106.01269: as `standard_layer`, with half the key size."""
    return _build("small_key", d_model, num_heads, **options)


def identifiable_layer(d_model: int, num_heads: int, **options: Unpack[LayerOptions]) -> EncoderLayer:
    """The *Add* layer of 2106.01269: `d_key` 16, `d_value = d_model`, heads truly added.

    Each head's weights are identifiable from its own output up to `d_model` tokens.

    Args:
        d_model: Width of the layer.
        num_heads: Number of attention maps.
        **options: Any of `d_key`, `d_value` (per head), `d_feedforward` (4 d_model), `dropout` (0.1),
            `activation` ("gelu") and `norm_first` (False).
    """
    return _build("identifiable", d_model, num_heads, **options)


def shared_value_layer(d_model: int, num_heads: int, **options: Unpack[LayerOptions]) -> EncoderLayer:
    """One value map of size `d_model` for all heads: the layer passes on `(mean of A_h) V`.

    Its averaged map is determined by what the layer passes on. Options are those of `identifiable_layer`.
    """
    return _build("shared_value", d_model, num_heads, **options)


PRESETS = {
    "standard": standard_layer,
    "small_key": small_key_layer,
    "identifiable": identifiable_layer,
    "shared_value": shared_value_layer,
}


def _build(
    preset: str,
    d_model: int,
    num_heads: int,
    *,
    d_key: int | None = None,
    d_value: int | None = None,
    d_feedforward: int | None = None,
    dropout: float = 0.1,
    activation: str = "gelu",
    norm_first: bool = False,
) -> EncoderLayer:
    sizes = SIZES[preset](d_model, num_heads)
    sizes = sizes._replace(d_key=d_key or sizes.d_key, d_value=d_value or sizes.d_value)
    return build_encoder_layer(
        d_model=d_model,
        num_heads=num_heads,
        **sizes._asdict(),
        d_feedforward=d_feedforward or 4 * d_model,
        dropout=dropout,
        activation=activation,
        norm_first=norm_first,
    )
