"""Slack: how far the weight on each token could at least go while the head's output stays the same."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .effective import kept_weights
from .key_constrained import chosen_rows
from .null_space import ValueDecomposition, orthonormal_basis

RTOL = 1e-13  # of the rank of a row's constraints
LEAST = 1e-12  # part of a token's direction that has to be free
BREACH = 1e-9  # weight that rounding may move along what the output shows


class Slack(NamedTuple):
    """Reachable weights of each token in each row, each field of shape *(..., rows, n)*; 0 outside `keep`.

    Attributes:
        lower: A weight that the token can fall to.
        upper: A weight that the token can rise to.
    """

    lower: Float[Tensor, "*batch rows n"]
    upper: Float[Tensor, "*batch rows n"]


def attention_slack(
    weights: Float[Tensor, "*batch n n"],
    values: Float[Tensor, "*batch n d_value"],
    output_map: Float[Tensor, "*maps d_value d_model"] | None = None,
    keep: Bool[Tensor, "*texts n"] | None = None,
    rows: Int[Tensor, " rows"] | None = None,
) -> Slack:
    """A certified part of what `attention_intervals` finds, in closed form.

    Source: ours. Relative changes y of a row a that the output does not show are the null space of
    `(diag(a) [U_c, 1])^T`; `G` is the projection on it. Along its columns the row stays a distribution up to
    `upper_j = a_j (1 + G_jj / max_k(-G_kj))` and `lower_j = a_j (1 - G_jj / max_k G_kj)`. A token that no such change
    moves, or only one that rounding spoils, keeps its weight.

    Args:
        weights: A head's attention weights.
        values: A head's values, biases included.
        output_map: The head's block of the output map; None stands for the identity.
        keep: True for tokens, False for padding.
        rows: Positions of the rows to measure; None stands for all.

    Shape:
        weights: *(..., n, n)*; values: *(..., n, d_value)*; output_map: *(..., d_value, d_model)*; keep: *(..., n)*;
        rows: *(rows,)*; each result: *(..., rows, n)*. The work takes *(..., rows, n, n)* numbers of memory.

    Raises:
        ValueError: If a kept value or weight is not finite; the message names its leading index.
    """
    decomposition = ValueDecomposition(values, output_map, keep)
    chosen, _ = chosen_rows(kept_weights(weights, decomposition.keep), decomposition.keep, rows)
    return slack_of_rows(chosen, decomposition.basis(centred=True), decomposition.keep)


def slack_of_rows(
    rows: Float[Tensor, "*batch rows n"], basis: Float[Tensor, "*batch n k"], keep: Bool[Tensor, "*batch n"]
) -> Slack:
    """`attention_slack` of kept rows by the basis of the centred T that is there already."""
    length = keep.sum(-1).clamp(min=1)[..., None, None]
    ones = keep[..., None] / length.sqrt()  # as long as the basis' columns
    shown = rows[..., None] * torch.cat([basis, ones], -1)[..., None, :, :]
    hidden, breach = _hidden_changes(shown)
    least, largest = hidden.aminmax(dim=-1)  # of each column: the projection is symmetric
    own = hidden.diagonal(dim1=-2, dim2=-1)
    return Slack(lower=rows * (1 - _reach(own, largest, breach)), upper=rows * (1 + _reach(own, -least, breach)))


def _hidden_changes(shown: Tensor) -> tuple[Tensor, Tensor]:
    """Projection *(..., rows, n, n)* on the changes that no column *(..., rows, n, k)* shows, and what each still does.

    The latter, *(..., rows, n)*, is how much rounding lets a column of the projection show.
    """
    left = orthonormal_basis(shown, RTOL * torch.linalg.matrix_norm(shown))
    breach = (shown.mT - (shown.mT @ left) @ left.mT).norm(dim=-2) + torch.finfo(shown.dtype).eps
    hidden = -left @ left.mT
    hidden.diagonal(dim1=-2, dim2=-1).add_(1)
    return hidden, breach


def _reach(own: Tensor, fastest: Tensor, breach: Tensor) -> Tensor:
    """How far along its own change a token gets before the weight that falls `fastest` reaches 0."""
    certified = (own >= LEAST) & (breach <= BREACH * fastest) & (fastest > 0)
    return torch.where(certified, own / fastest, 0.0)
