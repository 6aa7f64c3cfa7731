"""Effective attention by its definition, the map less its projection on the null space: one head, one text, numpy."""

import numpy as np
import scipy.linalg
from references.null_space import default_rtol, transformed, zero_sum_basis


def effective_attention(weights, values, output_map=None, keep=None, preserve_sum=False) -> np.ndarray:
    """A less the part of each row in LN(T); with `preserve_sum`, in the zero-sum part of LN(T). Padding is 0."""
    weights = np.asarray(weights, dtype=np.float64)
    kept = np.arange(len(weights)) if keep is None else np.flatnonzero(np.asarray(keep))
    raw = weights[np.ix_(kept, kept)]
    basis = unseen(transformed(values, output_map, keep), np.shape(values)[1], preserve_sum)
    effective = np.zeros_like(weights)
    effective[np.ix_(kept, kept)] = raw - raw @ basis @ basis.T
    return effective


def unseen(matrix: np.ndarray, d_value: int, zero_sum: bool) -> np.ndarray:
    """Orthonormal basis (n, k) of the x with x T = 0, and sum(x) = 0 where `zero_sum`."""
    n = len(matrix)
    directions = zero_sum_basis(n) if zero_sum else np.eye(n)
    largest = np.linalg.norm(matrix, 2)
    left, sigma, _ = np.linalg.svd(directions.T @ matrix, full_matrices=True)
    rank = int((sigma > default_rtol(n, d_value) * largest).sum())
    return directions @ left[:, rank:]


def agreement(raw, effective, keep=None) -> tuple[float, float, float]:
    """Pearson, residual and negative mass, entry by entry over kept rows and columns."""
    raw, effective = np.asarray(raw, dtype=np.float64), np.asarray(effective, dtype=np.float64)
    kept = [i for i in range(len(raw)) if keep is None or keep[i]]
    x = [raw[i, j] for i in kept for j in kept]
    y = [effective[i, j] for i in kept for j in kept]
    difference = sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) ** 0.5
    negative = sum(max(0.0, -b) for b in y) / len(kept)
    return float(np.corrcoef(x, y)[0, 1]), difference / sum(a**2 for a in x) ** 0.5, negative


def smallest_with_the_same_output(weights, matrix) -> np.ndarray:
    """The minimum-norm solution B of B T = A T, by the pseudo-inverse."""
    return weights @ matrix @ scipy.linalg.pinv(matrix)
