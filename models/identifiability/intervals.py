"""Intervals: exactly how far the weight on each token could go while the head's output stays the same."""

from typing import NamedTuple

import highspy
import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from .max_entropy import output_size
from .null_space import ValueDecomposition, refuse_non_finite

RTOL = 1e-12  # of the rank of the constraints on a row's support
# Feasibility to the least that HiGHS takes. Its primal simplex, which could go on from the last solution, would halve
# the time, but gives up on a few programmes in a hundred that are nearly degenerate; the dual, its default, on none.
OPTIONS = {
    "output_flag": False,
    "primal_feasibility_tolerance": 1e-10,
    "dual_feasibility_tolerance": 1e-10,
}


class _QuietHighs(highspy.Highs):
    """HiGHS whose Python constructor is passed over: it prints a banner before any option can silence it."""

    def __init__(self):
        super(highspy.Highs, self).__init__()


class Intervals(NamedTuple):
    """Reachable weights of each token in one row, each field of shape *(n,)*.

    Attributes:
        lower: The least weight that the token can have.
        upper: The largest.
    """

    lower: Float[Tensor, " n"]
    upper: Float[Tensor, " n"]


def attention_intervals(
    row_weights: Float[Tensor, " n"],
    values: Float[Tensor, "n d_value"],
    output_map: Float[Tensor, "d_value d_model"] | None = None,
    tolerance: float = 0.0,
) -> Intervals:
    """For each token the least and largest weight among all distributions with the row's support and output.

    Source: ours. Two linear programmes per token in `x = a' - a`: `U_c^T x = 0`, `1^T x = 0`, `-a <= x <= 1 - a`. With
    a tolerance the output may differ, `|(x^T T)_k| <= tolerance |a T| / sqrt(columns of T)` for every coordinate k of
    T as `ValueDecomposition` reduces it, so by no more than `tolerance |a T|` in all.

    Args:
        row_weights: One row of a head's attention weights, without padding.
        values: The head's values, biases included.
        output_map: The head's block of the output map; None stands for the identity.
        tolerance: Largest change of the output, relative to its norm.

    Shape:
        row_weights: *(n,)*; values: *(n, d_value)*; output_map: *(d_value, d_model)*; each result: *(n,)*, float64.

    Raises:
        ValueError: If a value or a weight is not finite, or `tolerance` is negative.
        RuntimeError: If HiGHS finds no solution, which rounding alone can cause.
    """
    if tolerance < 0:
        raise ValueError(f"tolerance is {tolerance}: it has to be 0 or more.")
    decomposition = ValueDecomposition(values, output_map)
    row = row_weights.double()
    refuse_non_finite("row_weights", row[None])
    support = row > 0
    shown, allowed = _shown_changes(decomposition, row, support, tolerance)
    lower, upper = row.clone(), row.clone()
    if shown.shape[1] < len(shown) - 1 or allowed:
        ends = torch.from_numpy(_ends(row[support].numpy(force=True), shown.numpy(force=True), allowed)).to(row.device)
        lower[support], upper[support] = torch.minimum(row[support], ends[0]), torch.maximum(row[support], ends[1])
    return Intervals(lower.clamp(min=0), upper)


def _shown_changes(
    decomposition: ValueDecomposition, row: Tensor, support: Tensor, tolerance: float
) -> tuple[Tensor, float]:
    """Columns *(support, k)* that a change x shows in, and how large `|(x^T columns)_k|` may be."""
    basis = decomposition.basis(centred=True)
    if tolerance:
        matrix = basis @ basis.mT @ decomposition.centred / output_size(row[None], decomposition.matrix)
        return matrix[support].nan_to_num(), tolerance / matrix.shape[1] ** 0.5
    # Where weights are 0 the basis' rows are left out, and some of its columns may have become dependent.
    left = ValueDecomposition(basis[support], rtol=RTOL).basis(centred=True)
    return left[:, left.any(0)], 0.0


def _ends(row: ndarray, shown: ndarray, allowed: float) -> ndarray:
    """Least and largest weight of each token, *(2, support)*, from one model of which only the cost changes."""
    model = _model(row, shown, allowed)
    changes = np.empty((2, len(row)))
    for token in range(len(row)):
        for end, cost in enumerate((1.0, -1.0)):
            model.changeColCost(token, cost)
            model.run()
            if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
                raise RuntimeError(f"HiGHS stopped with {model.getModelStatus()} at token {token} of {len(row)}.")
            changes[end, token] = cost * model.getObjectiveValue()
        model.changeColCost(token, 0.0)
    return row + changes


def _model(row: ndarray, shown: ndarray, allowed: float) -> highspy.Highs:
    """All x with `|(x^T shown)_k| <= allowed`, `1^T x = 0` and `-a <= x <= 1 - a`; x = 0 is one of them."""
    tokens, columns = shown.shape
    programme = highspy.HighsLp()
    programme.num_col_, programme.num_row_ = tokens, columns + 1
    programme.col_cost_ = np.zeros(tokens)
    programme.col_lower_, programme.col_upper_ = -row, 1 - row
    bound = np.append(np.full(columns, allowed), 0.0)
    programme.row_lower_, programme.row_upper_ = -bound, bound
    programme.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    programme.a_matrix_.start_ = np.arange(tokens + 1) * (columns + 1)
    programme.a_matrix_.index_ = np.tile(np.arange(columns + 1), tokens)
    programme.a_matrix_.value_ = np.column_stack([shown, np.ones(tokens)]).ravel()
    model = _QuietHighs()
    for option, value in OPTIONS.items():
        model.setOptionValue(option, value)
    model.passModel(programme)
    return model
