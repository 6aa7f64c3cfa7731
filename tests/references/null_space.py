"""Null spaces as their definitions read: one text, one head, n x d_model matrices, numpy in float64.

Shifts whose sum is 0 are written out as an orthonormal basis B (n, n - 1), so that nothing here is centred.
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg

FLOAT32_EPSILON = float(np.finfo(np.float32).eps)


class Reference(NamedTuple):
    """The fields of `NullSpace`, for one head and one text."""

    length: int
    rank: int
    rank_with_ones: int
    nullity: int
    simplex_nullity: int
    margin: float


def default_rtol(length: int, d_value: int) -> float:
    """max(n, d_value) times float32's precision."""
    return max(length, d_value) * FLOAT32_EPSILON


def zero_sum_basis(length: int) -> np.ndarray:
    """Orthonormal basis (n, n - 1) of the vectors whose entries sum to 0."""
    return scipy.linalg.null_space(np.ones((1, length)))


def singular_values(matrix: np.ndarray) -> np.ndarray:
    """Singular values, one per row of `matrix`: 0 beyond its columns."""
    found = np.linalg.svd(matrix, compute_uv=False) if matrix.size else np.zeros(0)
    return np.concatenate([found, np.zeros(len(matrix) - len(found))])


def null_space(values, output_map=None, keep=None, rtol=None) -> Reference:
    """Cut padding away, form T, count singular values; the margin is the least |x T| of a unit zero-sum x."""
    d_value = np.shape(values)[1]
    matrix = transformed(values, output_map, keep)
    n = len(matrix)
    if n == 0:
        return Reference(0, 0, 0, 0, 0, float("nan"))
    sigma = singular_values(matrix)
    shifted = singular_values(zero_sum_basis(n).T @ matrix)
    tolerance = (default_rtol(n, d_value) if rtol is None else rtol) * sigma[0]
    rank = int((sigma > tolerance).sum())
    rank_with_ones = 1 + int((shifted > tolerance).sum())
    return Reference(n, rank, rank_with_ones, n - rank, n - rank_with_ones, margin(sigma, shifted))


def margin(sigma, shifted) -> float:
    """The smallest singular value over zero-sum shifts beside the largest of all; 1 for a single token."""
    if len(sigma) == 1:
        return 1.0
    return float(shifted[-1] / sigma[0]) if sigma[0] > 0 else 0.0


def transformed(values, output_map=None, keep=None) -> np.ndarray:
    """T = V W_O of the kept tokens, (n, d_model)."""
    matrix = np.asarray(values, dtype=np.float64)
    if keep is not None:
        matrix = matrix[np.asarray(keep)]
    return matrix if output_map is None else matrix @ np.asarray(output_map, dtype=np.float64)


def joint_nullities(head_matrices: list[np.ndarray], d_value: int) -> tuple[int, int]:
    """Of the map (x_1, ..., x_h) -> sum_h x_h T_h: its nullity, and that over x_h whose entries each sum to 0."""
    n, heads = len(head_matrices[0]), len(head_matrices)
    stacked = np.concatenate(head_matrices)
    basis = zero_sum_basis(n)
    shifted = np.concatenate([basis.T @ matrix for matrix in head_matrices])
    sigma = singular_values(stacked)
    tolerance = default_rtol(heads * n, d_value) * sigma[0]
    rank, shifted_rank = (int((s > tolerance).sum()) for s in (sigma, singular_values(shifted)))
    return heads * n - rank, heads * (n - 1) - shifted_rank
