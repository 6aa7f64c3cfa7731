"""Queries and keys of a smaller size that give nearly the same attention scores."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def compress_scores(
    query: Float[Tensor, "*head d_key inputs"],
    key: Float[Tensor, "*head d_key d_model"],
    size: int,
    query_moment: Float[Tensor, "inputs inputs"] | None = None,
    key_covariance: Float[Tensor, "d_model d_model"] | None = None,
) -> tuple[Float[Tensor, "*head size inputs"], Float[Tensor, "*head size d_model"], Float[Tensor, "*head"]]:
    """The best approximation of the bilinear form `query^T key` by one of rank `size`.

    Best in the mean square of the scores, when the query side's inputs have the second moments `query_moment` and the
    key side's the covariance `key_covariance` (a score's mean over the keys is lost on the softmax); without them, in
    the Frobenius norm. This is Eckart and Young's theorem for the form between whitened inputs, solved in the
    `d_key x d_key` matrix between the two maps' QR-like roots.

    Returns:
        The new maps, for scores divided by the root of the new size where the old ones were by the old one's, and the
        error of each head relative to the scores' own root mean square, in [0, 1].
    """
    query_root = _root(query @ query.mT if query_moment is None else query @ query_moment @ query.mT)
    key_root = _root(key @ key.mT if key_covariance is None else key @ key_covariance @ key.mT)
    left, strength, right = torch.linalg.svd(query_root @ key_root.mT)
    kept = strength[..., :size].sqrt().unsqueeze(-2)
    scale = math.sqrt(size / query.shape[-2])
    new_query = (torch.linalg.pinv(query_root) @ (left[..., :size] * kept)).mT @ query * scale
    new_key = (torch.linalg.pinv(key_root) @ (right.mT[..., :size] * kept)).mT @ key
    total = strength.square().sum(-1)
    error = strength[..., size:].square().sum(-1) / total.where(total > 0, 1.0)
    return new_query, new_key, error.sqrt()


def _root(gram: Float[Tensor, "*head d_key d_key"]) -> Float[Tensor, "*head d_key d_key"]:
    """R with `R^T R = gram`."""
    values, vectors = torch.linalg.eigh(gram)
    return values.clamp(min=0).sqrt().unsqueeze(-1) * vectors.mT
