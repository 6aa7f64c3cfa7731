"""The position-wise feed-forward part of an encoder layer."""

from jaxtyping import Float
from torch import Tensor, nn

ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU, "tanh": nn.Tanh}


class FeedForward(nn.Module):
    """`inner -> activation -> dropout -> outer` (1706.03762, section 3.3).

    Args:
        d_model: Width of the input and of the output.
        d_feedforward: Width inside.
        activation: One of `gelu`, `relu`, `silu`, `tanh`.
        dropout: Probability of dropping an inner value while training.

    Raises:
        ValueError: If `activation` is unknown.
    """

    def __init__(self, *, d_model: int, d_feedforward: int, activation: str, dropout: float):
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation is {activation!r}: choose one of {', '.join(ACTIVATIONS)}.")
        self.inner = nn.Linear(d_model, d_feedforward)
        self.activation = ACTIVATIONS[activation]()
        self.dropout = nn.Dropout(dropout)
        self.outer = nn.Linear(d_feedforward, d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier weights, zero biases."""
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:  # it is None where `from_torch` met none
                nn.init.zeros_(linear.bias)

    def forward(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Apply to every position alike."""
        return self.outer(self.dropout(self.activation(self.inner(hidden))))
