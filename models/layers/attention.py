"""Multi-head attention with free key and value sizes."""

import math

from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..functional.attention import attend, attend_averaged, attend_fused, concat_heads, mean_heads, rotate, sum_heads
from ..functional.masks import zero_padding

MERGE = {"concat": concat_heads, "sum": sum_heads, "mean": mean_heads}
AVERAGED = 512  # tokens up to which averaging maps first is faster; beyond, a fused kernel takes less memory


class MultiHeadAttention(nn.Module):
    """Self-attention as a sum over heads, `output = sum_h A_h V_h W_h + b`, `A_h = softmax(Q_h K_h^T / sqrt(d_key))`.

    What separates the layers is `merge_heads`:

    - `"concat"` (1706.03762): each head has an output map `W_h` of its own, a block of `output`.
    - `"sum"` (2106.01269, *Add*): all heads share one output map, `W_h = W`.
    - `"mean"`: the same, divided by the number of heads.

    Args:
        d_model: Width of the input and of the output.
        num_heads: Number of attention maps.
        d_key: Size of queries and keys, per head.
        d_value: Size of values, per head. A head's weights are identifiable up to `min(d_value + 1, d_model)` tokens.
        num_value_heads: Number of value maps; a divisor of `num_heads`. Neighbouring heads share one.
        merge_heads: `"concat"`, `"sum"` or `"mean"`.
        dropout: Probability of dropping an attention weight while training.

    Raises:
        ValueError: If `merge_heads` is unknown or `num_value_heads` does not divide `num_heads`.
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int,
        d_key: int,
        d_value: int,
        num_value_heads: int,
        merge_heads: str,
        dropout: float,
    ):
        super().__init__()
        if merge_heads not in MERGE:
            raise ValueError(f"merge_heads is {merge_heads!r}: choose one of {', '.join(MERGE)}.")
        if num_value_heads < 1 or num_heads % num_value_heads:
            raise ValueError(f"num_value_heads is {num_value_heads}: it must divide num_heads, {num_heads}.")
        self.d_model, self.num_heads, self.d_key, self.d_value = d_model, num_heads, d_key, d_value
        self.num_value_heads, self.merge_heads, self.dropout = num_value_heads, merge_heads, dropout
        self.query = nn.Linear(d_model, num_heads * d_key)
        self.key = nn.Linear(d_model, num_heads * d_key)
        self.value = nn.Linear(d_model, num_value_heads * d_value)
        self.output = nn.Linear(num_heads * d_value if merge_heads == "concat" else d_value, d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier for query, key and output; values such that the merged output varies as concatenation's does."""
        for linear in (self.query, self.key, self.output):
            nn.init.xavier_uniform_(linear.weight)
        # Near-uniform maps add h/m equal heads for each of the m value maps: the variance of a sum grows to h^2/m.
        gain = {"concat": 1.0, "sum": self.num_value_heads / self.num_heads**2, "mean": self.num_value_heads}
        nn.init.normal_(self.value.weight, std=math.sqrt(gain[self.merge_heads] / self.d_model))
        for linear in (self.query, self.key, self.value, self.output):
            if linear.bias is not None:  # it is None where `from_torch` met none
                nn.init.zeros_(linear.bias)

    @property
    def identifiable_length(self) -> int:
        """Tokens up to which a head's weights can be identified from its output: `min(d_value + 1, d_model)`.

        The second bound holds behind a LayerNorm, where the centred input has rank `d_model - 1`.
        """
        return min(self.d_value + 1, self.d_model)

    def forward(
        self,
        hidden: Float[Tensor, "batch token d_model"],
        keep: Bool[Tensor, "batch token"] | None = None,
        bias: Float[Tensor, "..."] | None = None,
        need_weights: bool = False,
        rotation: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend within each text.

        Args:
            hidden: The layer's input.
            keep: True where a token takes part, False where there is padding. None: everything takes part.
            bias: Added to the scores; broadcasts to *(batch, head, query, key)*.
            need_weights: Also return the weights, by the explicit path.
            rotation: Cosines and sines, each *(batch or 1, token, d_key)*, that turn queries and keys.

        Shape:
            output: *(batch, token, d_model)*; weights: *(batch, head, query, key)*.
        """
        hidden = zero_padding(hidden, keep)
        query = self._split(self.query(hidden), self.num_heads)  # (batch, head, token, d_key)
        key = self._split(self.key(hidden), self.num_heads)
        if rotation is not None:
            query, key = rotate(query, *rotation), rotate(key, *rotation)
        value = self._split(self.value(hidden), self.num_value_heads)
        dropout = self.dropout if self.training else 0.0
        if self._averages(hidden) and bias is None and not need_weights:
            return self.output(attend_averaged(query, key, value[:, 0], keep, dropout))
        value = value.repeat_interleave(self.num_heads // self.num_value_heads, dim=1)  # (batch, head, token, d_value)
        if not need_weights:
            return self._merge(attend_fused(query, key, value, keep, bias, dropout))
        heads, weights = attend(query, key, value, keep, bias, dropout)
        return self._merge(heads), weights

    def _averages(self, hidden: Tensor) -> bool:
        """Whether it is best to average the maps first."""
        return self.num_value_heads == 1 and self.merge_heads == "mean" and hidden.shape[1] <= AVERAGED

    @staticmethod
    def _split(projected: Tensor, heads: int) -> Tensor:
        return projected.unflatten(-1, (heads, -1)).transpose(1, 2)

    def _merge(self, heads: Tensor) -> Tensor:
        return self.output(MERGE[self.merge_heads](heads))
