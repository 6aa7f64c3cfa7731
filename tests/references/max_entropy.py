"""Slow twin of `max_entropy_attention`, one row at a time: entropy climbed inside the null space of [T, 1]."""

import numpy as np
import scipy.linalg
import scipy.special


def entropy(row):
    """Entropy in nats."""
    return -np.sum(scipy.special.xlogy(row, row))


def max_entropy_row(row, transformed):
    """The distribution of largest entropy on the row's support with the same `row @ transformed`."""
    support = row > 0
    constraints = np.column_stack([transformed[support], np.ones(support.sum())])
    free = scipy.linalg.null_space(constraints.T)
    result = row.copy()
    for _ in range(500):
        inside = result[support]
        gradient = -free.T @ (np.log(inside) + 1)
        if not len(gradient) or np.abs(gradient).max() < 1e-9:
            break
        direction = free @ np.linalg.solve(free.T @ (free / inside[:, None]), gradient)
        result[support] = _climb(inside, direction)
    return result


def _climb(inside, direction):
    """The first of the steps 1, 1/2, 1/4, ... that stays positive and raises the entropy."""
    for halvings in range(60):
        candidate = inside + direction / 2**halvings
        if candidate.min() > 0 and entropy(candidate) > entropy(inside):
            return candidate
    return inside
