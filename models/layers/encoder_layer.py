"""An encoder layer, built from its parts."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..functional.masks import zero_padding
from .attention import MultiHeadAttention
from .feedforward import FeedForward


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each with a residual connection and a LayerNorm.

    Args:
        attention: Takes `(hidden, keep, bias, need_weights=...)`, as `MultiHeadAttention` does.
        feedforward: Takes `hidden`.
        d_model: Width of the input and of the output.
        norm_first: LayerNorm before each part (pre-norm) instead of after its residual (post-norm).
        dropout: Probability of dropping a part's output while training.
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        feedforward: FeedForward,
        *,
        d_model: int,
        norm_first: bool,
        dropout: float,
    ):
        super().__init__()
        self.attention, self.feedforward, self.norm_first = attention, feedforward, norm_first
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    @property
    def identifiable_length(self) -> int:
        """Tokens up to which each head's weights can be identified from its output."""
        return self.attention.identifiable_length

    def forward(
        self,
        hidden: Float[Tensor, "batch token d_model"],
        keep: Bool[Tensor, "batch token"] | None = None,
        bias: Float[Tensor, "..."] | None = None,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Encode texts; with `need_weights` also return the attention weights.

        Shape:
            hidden and output: *(batch, token, d_model)*; keep: *(batch, token)*; weights: *(batch, head, query, key)*;
            bias, added to the scores, broadcasts to the shape of the weights.
        """
        hidden = zero_padding(hidden, keep)
        normed = self.norm1(hidden) if self.norm_first else hidden
        attended = self.attention(normed, keep, bias, need_weights=need_weights)
        attended, *weights = attended if need_weights else (attended,)
        hidden = hidden + self.dropout(attended)
        if self.norm_first:
            hidden = hidden + self.dropout(self.feedforward(self.norm2(hidden)))
        else:
            hidden = self.norm1(hidden)
            hidden = self.norm2(hidden + self.dropout(self.feedforward(hidden)))
        return (hidden, *weights) if need_weights else hidden


def build_encoder_layer(
    *,
    d_model: int,
    num_heads: int,
    d_key: int,
    d_value: int,
    num_value_heads: int,
    merge_heads: str,
    d_feedforward: int,
    dropout: float,
    activation: str,
    norm_first: bool,
) -> EncoderLayer:
    """An encoder layer from numbers alone, with one dropout probability everywhere."""
    attention = MultiHeadAttention(
        d_model=d_model,
        num_heads=num_heads,
        d_key=d_key,
        d_value=d_value,
        num_value_heads=num_value_heads,
        merge_heads=merge_heads,
        dropout=dropout,
    )
    feedforward = FeedForward(d_model=d_model, d_feedforward=d_feedforward, activation=activation, dropout=dropout)
    return EncoderLayer(attention, feedforward, d_model=d_model, norm_first=norm_first, dropout=dropout)
