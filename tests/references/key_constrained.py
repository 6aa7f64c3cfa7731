"""Slow twin of `key_ambiguity`, one row at a time: ranks of dense Jacobians and angles between subspaces."""

import numpy as np
import scipy.linalg


def ambiguity(row, keys, values):
    """Directions u of the query with `(diag(a) - a a^T) K u` not 0, less those that change the output.

    Keys and values are of the order of 1: what is below 1e-10 is 0.
    """
    covariance = np.diag(row) - np.outer(row, row)
    movable = covariance @ keys
    rank = np.linalg.matrix_rank
    return rank(movable, tol=1e-10) - rank(values.T @ movable, tol=1e-10)


def margin(row, keys, values):
    """Cosine of the largest angle from a direction of the keys to the values' directions, on the row's support."""
    support = row > 0
    weight, keys, values = row[support], keys[support], values[support]
    root = np.sqrt(weight)[:, None]
    of_keys = scipy.linalg.orth(root * (keys - weight @ keys), rcond=1e-10)
    of_values = scipy.linalg.orth(root * (values - weight @ values), rcond=1e-10)
    if of_keys.shape[1] == 0:
        return 1.0
    if of_keys.shape[1] > of_values.shape[1]:
        return 0.0
    return np.cos(scipy.linalg.subspace_angles(of_keys, of_values)).min()
