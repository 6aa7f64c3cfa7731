"""Slow twin of the dimension in `alternative_attention`: ranks of dense Jacobians by automatic differentiation."""

import torch


def dimension(query, key, values, bias=None, tolerance=1e-10):
    """Directions of (query, key) that change the weights, less those that change the output `A T`.

    Singular values of the Jacobians count above `tolerance`; queries, keys and values are of the order of 1.
    """
    values = values - values.mean(0)  # rows sum to 1: the mean would only add rounding errors

    def weights(query, key):
        scores = query @ key.T / query.shape[1] ** 0.5
        return (scores if bias is None else scores + bias).softmax(-1)

    def output(query, key):
        return weights(query, key) @ values

    return _rank(weights, query, key, tolerance) - _rank(output, query, key, tolerance)


def _rank(function, query, key, tolerance):
    jacobians = torch.autograd.functional.jacobian(function, (query, key))
    dense = torch.cat([part.flatten(0, 1).flatten(1) for part in jacobians], 1)
    return int(torch.linalg.matrix_rank(dense, atol=tolerance, rtol=0))
