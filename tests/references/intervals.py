"""Slow twins of `attention_slack` and `attention_intervals`, one token at a time."""

import numpy as np
import scipy.linalg
import scipy.optimize


def interval(row, transformed, token, allowed=0.0):
    """The two distributions with the least and the largest weight on a token, by a linear programme each.

    They have the row's support, and every coordinate of their output is within `allowed` of the row's.
    """
    cost = np.zeros(len(row))
    cost[token] = 1
    output = row @ transformed
    ends = []
    for sign in (1, -1):
        solution = scipy.optimize.linprog(
            sign * cost,
            A_ub=np.vstack([transformed.T, -transformed.T]),
            b_ub=np.concatenate([output + allowed, allowed - output]),
            A_eq=np.ones((1, len(row))),
            b_eq=[row.sum()],
            bounds=[(0, 1 if weight > 0 else 0) for weight in row],
            method="highs",
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )
        ends.append(solution.x)
    return ends


def slack(row, transformed, token):
    """The two distributions reached from the row along the projection of a token's relative change."""
    constraints = row[:, None] * np.column_stack([transformed, np.ones(len(row))])
    free = scipy.linalg.null_space(constraints.T)
    direction = free @ free[token]
    if row[token] == 0 or direction[token] < 1e-12:
        return row, row
    ends = []
    for sign in (-1, 1):
        falling = sign * direction < 0
        ends.append(row * (1 + sign * direction * np.min(-1 / (sign * direction[falling]))))
    return ends
