"""Our encoder layer called as PyTorch's own, so that it works inside `nn.TransformerEncoder`."""

import math

import torch
from torch import Tensor, nn

from .encoder_layer import EncoderLayer


class TorchEncoderLayer(nn.Module):
    """An `EncoderLayer` that is called as `nn.TransformerEncoderLayer` is, for instance by `nn.TransformerEncoder`.

    `nn.TransformerEncoder` copies the layer it is given, so that all its layers start with equal weights. Tell it
    `enable_nested_tensor=False`, or it warns that it cannot use them.

    Args:
        layer: The layer.
        batch_first: Whether batched input is *(batch, token, d_model)* instead of *(token, batch, d_model)*.
    """

    def __init__(self, layer: EncoderLayer, *, batch_first: bool = False):
        super().__init__()
        self.layer, self.batch_first = layer, batch_first

    @property
    def self_attn(self) -> "TorchEncoderLayer":
        """What `nn.TransformerEncoder` asks for `batch_first`: the layer itself."""
        return self

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Encode texts.

        Boolean masks are True where attention may *not* go; floating ones are added to the scores, -inf where it may
        not go. A query that may attend to no key attends to nothing, where PyTorch's layer may give NaN. The output at
        padded positions is finite and has no meaning.

        Args:
            src: The layer's input.
            src_mask: Which keys each query may attend to.
            src_key_padding_mask: The padding. Not even a NaN there reaches anybody.
            is_causal: PyTorch's hint that `src_mask` is causal. `src_mask` is used as it is, so that the hint changes
                nothing and a wrong one does no harm.

        Shape:
            src and output: *(batch, token, d_model)*, *(token, batch, d_model)* unless `batch_first`, or
            *(token, d_model)*; src_mask: *(token, token)* or *(batch num_heads, token, token)*; src_key_padding_mask:
            *(batch, token)*, or *(token,)* for one text.

        Raises:
            ValueError: If `src` or a mask has another shape or kind, or `is_causal` comes without `src_mask`.
        """
        if src.is_nested or src.dim() not in (2, 3):
            raise ValueError(
                "src must have 2 or 3 dimensions and not be nested: enable_nested_tensor=False prevents it."
            )
        if src_mask is None and is_causal:
            raise ValueError("is_causal says that src_mask is causal, but there is no src_mask: give it too.")
        if src.dim() == 2:
            text = 0 if self.batch_first else 1
            padding = None if src_key_padding_mask is None else src_key_padding_mask[None]
            return self.forward(src.unsqueeze(text), src_mask, padding, is_causal).squeeze(text)
        hidden = src if self.batch_first else src.transpose(0, 1)
        output = self.layer(hidden, *self._keep_and_bias(hidden, src_mask, src_key_padding_mask))
        return output if self.batch_first else output.transpose(0, 1)

    def _keep_and_bias(
        self, hidden: Tensor, mask: Tensor | None, padding: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        batch, tokens, _ = hidden.shape
        keep = bias = None
        if padding is not None:
            added = _added(padding, "src_key_padding_mask", hidden, (batch, tokens))
            keep = ~added.isneginf()
            bias = added.masked_fill(~keep, 0.0)[:, None, None]  # (batch, 1, 1, key)
        if mask is not None:
            heads = self.layer.attention.num_heads
            added = _added(mask, "src_mask", hidden, (tokens, tokens), (batch * heads, tokens, tokens))
            added = added if added.dim() == 2 else added.unflatten(0, (batch, heads))  # (batch, head, query, key)
            bias = added if bias is None else bias + added
        return keep, bias


def _added(mask: Tensor, name: str, hidden: Tensor, *shapes: tuple[int, ...]) -> Tensor:
    """A mask of PyTorch's as what is added to the scores."""
    if mask.shape not in shapes:
        raise ValueError(f"{name} has shape {tuple(mask.shape)}: it must be {' or '.join(map(str, shapes))}.")
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=hidden.dtype).masked_fill(mask, -math.inf)
    if not mask.is_floating_point():
        raise ValueError(
            f"{name} is of {mask.dtype}: give booleans, True where attention may not go, or floats to add."
        )
    return mask.to(hidden.dtype)
