"""Masks. Inside the package there is one polarity: `keep`, boolean, True takes part."""

from jaxtyping import Bool, Float
from torch import Tensor


def keep_mask(attention_mask: Tensor) -> Bool[Tensor, "batch token"] | None:
    """`keep` from a Hugging Face `attention_mask` (1 = token, 0 = padding); None when there are tokens and no padding.

    None lets the fused attention run its fastest kernel.
    """
    keep = attention_mask.bool()
    return None if keep.numel() and bool(keep.all()) else keep


def zero_padding(
    hidden: Float[Tensor, "*batch token d"], keep: Bool[Tensor, "*batch token"] | None
) -> Float[Tensor, "*batch token d"]:
    """`hidden` with 0 at padded positions, so that nothing there, not even a NaN, reaches anybody."""
    return hidden if keep is None else hidden.masked_fill(~keep[..., None], 0.0)
