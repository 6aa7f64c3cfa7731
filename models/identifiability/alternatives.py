"""Realisable alternatives: another query and key of the same sizes with other weights and the same output.

A null-space shift of a map need not be the softmax of logits of rank d_key. Here the shift is looked for among those
that are: a walk in query and key along which the output stays as it is.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from .max_entropy import output_size
from .null_space import ValueDecomposition, refuse_non_finite

RTOL = 1e-10  # of the rank of a row's output on its support
LEAST = 1e-13  # output per unit of logit that rounding leaves to correct by
ACCURACY = 1e-12  # relative output error that ends a correction
HALVINGS = 10


class Alternative(NamedTuple):
    """Another query and key with the same output, or the head's own where there are none to first order.

    Attributes:
        query: The other query.
        key: The other key.
        weights: Their attention weights.
        total_variation: `sum_j |a'_j - a_j| / 2`, the mean over rows; 0 where there is no alternative, or where none
            could be walked to.
        output_error: Largest relative error of a row's output; 0 where there is no alternative.
        dimension: Dimension of the family of maps with the same output around the head's own, to first order. Changes
            of the output below about 1e-7 of the largest count as none.
    """

    query: Float[Tensor, "n d_key"]
    key: Float[Tensor, "n d_key"]
    weights: Float[Tensor, "n n"]
    total_variation: float
    output_error: float
    dimension: int


@torch.no_grad()
def alternative_attention(
    query: Float[Tensor, "n d_key"],
    key: Float[Tensor, "n d_key"],
    values: Float[Tensor, "n d_value"],
    output_map: Float[Tensor, "d_value d_model"] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    steps: int = 20,
    step_size: float = 0.05,
    seed: int = 0,
) -> Alternative:
    """Walk through the queries and keys of one head that leave its output as it is.

    Source: ours; whether a null-space shift is still a softmax of rank-d_key logits is left open by 1908.04211. From a
    random matrix R each step climbs `<R, A>` inside the null space of the output's Jacobian J, so without any part
    that leaves A as it is, and is then corrected by Gauss-Newton until the output is the first one's again.

    The dimension is that of all changes of A that query and key can make, `n (n - 1) - (n - r_Q) (n - 1 - r_K)` where
    no weight is 0, with `r_Q` the rank of Q and `r_K` of K less its mean row, less the rank of J.

    Args:
        query: The head's queries, biases included, without padding.
        key: The head's keys.
        values: The head's values.
        output_map: The head's block of the output map; None stands for the identity.
        bias: What is added to the scores.
        steps: Number of steps.
        step_size: Length of a step relative to that of query and key together.
        seed: Of the random matrix.

    Shape:
        query and key: *(n, d_key)*; values: *(n, d_value)*; output_map: *(d_value, d_model)*; bias: *(n, n)*. With r
        the rank of the values less their mean row, the work takes `(n r)^2` numbers of memory, and `n^4` for the
        dimension where a weight is 0.

    Raises:
        ValueError: If a query, key or value is not finite.
    """
    for name, tensor in (("query", query), ("key", key)):
        refuse_non_finite(name, tensor)
    decomposition = ValueDecomposition(values, output_map)
    basis = decomposition.basis(centred=True)
    basis = basis[:, basis.any(0)]
    own = torch.cat([query, key]).double()
    weights = _weights(own, bias)
    dimension = _dimension(own, weights, basis)
    if dimension == 0:
        return Alternative(query.double(), key.double(), weights, 0.0, 0.0, 0)
    sizes = basis.T @ decomposition.centred  # so that |(U_c^T x) sizes| = |x T|
    output = _Output(weights @ basis, sizes, output_size(weights, decomposition.matrix), basis, bias)
    generator = torch.Generator().manual_seed(seed)
    climbed = torch.randn(weights.shape, generator=generator, dtype=torch.float64).to(weights.device)
    point = own
    for _ in range(steps):
        point = output.step(point, climbed, step_size * own.norm())
    walked = _weights(point, bias)
    variation, error = (walked - weights).abs().sum(-1).mean() / 2, output.error(walked).max()
    return Alternative(point[: len(query)], point[len(query) :], walked, variation.item(), error.item(), dimension)


class _Output(NamedTuple):
    """The output that has to stay, in the coordinates `A U_c`."""

    coordinates: Tensor  # (n, r)
    sizes: Tensor  # (r, columns of T)
    scale: Tensor  # (n,)
    basis: Tensor  # (n, r)
    bias: Tensor | None

    def error(self, weights: Tensor) -> Tensor:
        """Relative output error of each row."""
        shift = ((weights @ self.basis - self.coordinates) @ self.sizes).norm(dim=-1)
        return torch.where(self.scale > 0, shift / self.scale, shift)

    def step(self, point: Tensor, climbed: Tensor, length: Tensor) -> Tensor:
        """Climb by `length`, or as little of it as it takes to come back to the output; stay where nothing does."""
        weights = _weights(point, self.bias)
        tangent = _Tangent(point, weights, self.basis)
        slope = weights * (climbed - (weights * climbed).sum(-1, keepdim=True))
        uphill = tangent.keeping(tangent.parameters(slope))
        for halving in range(HALVINGS):
            found = self.correct(point + uphill * (length / uphill.norm() / 2**halving), tangent)
            if found is not None:
                return found
        return point

    def correct(self, point: Tensor, tangent: "_Tangent") -> Tensor | None:
        """Gauss-Newton back to the output, by the Jacobian where the step began; None if a round does not gain half."""
        last = math.inf
        while True:
            weights = _weights(point, self.bias)
            error = self.error(weights).max().item()
            if error <= ACCURACY:
                return point
            if not error < last / 2:
                return None
            point, last = point - tangent.causing(weights @ self.basis - self.coordinates), error


class _Tangent:
    """How the output moves with query and key, to first order: through the directions of each row's logits it shows.

    Row i's output moves by `ds^T (diag(a_i) - a_i a_i^T) U_c`. In an orthonormal basis W_i of that matrix' columns
    the Jacobian is well conditioned even where the weights range over many orders of magnitude.
    """

    def __init__(self, point: Tensor, weights: Tensor, basis: Tensor):
        self.query, self.key = point.chunk(2)
        self.shown, size, right = _shown_logits(weights, basis)
        self.inverse = right * torch.where(size > LEAST, 1 / size, 0.0)[..., None]
        gram = _gram(self.query, self.key, self.shown)
        gram.diagonal().add_(LEAST * gram.trace() / len(point))
        self.factor = torch.linalg.cholesky(gram)

    def parameters(self, scores: Tensor) -> Tensor:
        """The gradient in query and key of the product of the logits with `scores`."""
        return torch.cat([scores @ self.key, scores.T @ self.query]) / math.sqrt(self.key.shape[1])

    def keeping(self, change: Tensor) -> Tensor:
        """The part of a change of query and key that leaves the output as it is."""
        query, key = change.chunk(2)
        logits = (query @ self.key.T + self.query @ key.T) / math.sqrt(self.key.shape[1])
        return change - self._least(torch.einsum("ij,ijr->ir", logits, self.shown))

    def causing(self, change: Tensor) -> Tensor:
        """The least change of query and key that moves the coordinates of the output by `change`."""
        return self._least(torch.einsum("irs,is->ir", self.inverse, change))

    def _least(self, shown: Tensor) -> Tensor:
        """The least change of query and key that moves row i's logits by `shown[i]` in its basis."""
        solved = torch.linalg.solve_triangular(self.factor, shown.reshape(-1, 1), upper=False)
        solved = torch.linalg.solve_triangular(self.factor.mT, solved, upper=True).view_as(shown)  # 15 x cholesky_solve
        return self.parameters(torch.einsum("ijr,ir->ij", self.shown, solved))


def _weights(point: Tensor, bias: Tensor | None) -> Tensor:
    query, key = point.chunk(2)
    scores = query @ key.T / math.sqrt(key.shape[1])
    return (scores if bias is None else scores + bias.double()).softmax(-1)


def _dimension(point: Tensor, weights: Tensor, basis: Tensor) -> int:
    """Dimension of the changes of A that query and key can make and the output does not show, to first order."""
    query, key = point.chunk(2)
    n = len(key)
    if basis.shape[1] == n - 1:
        return 0
    rank = torch.linalg.matrix_rank
    if (weights > 0).all():
        made = n * (n - 1) - (n - rank(query)) * (n - 1 - rank(key - key.mean(0)))
    else:
        eye = torch.eye(n, dtype=basis.dtype, device=basis.device)
        made = rank(_gram(query, key, _shown_logits(weights, eye)[0]), hermitian=True)
    return int(made - rank(_gram(query, key, _shown_logits(weights, basis)[0]), hermitian=True))


def _shown_logits(weights: Tensor, basis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Singular value decomposition of `(diag(a_i) - a_i a_i^T) U_c` for each row i.

    Its rank is that of U_c on the row's support, whatever the weights there: columns past it are 0.
    """
    moved = weights[:, :, None] * (basis - (weights @ basis)[:, None, :])  # (row, token, r)
    left, size, right = torch.linalg.svd(moved, full_matrices=False)
    support = (weights > 0).double()
    mean = support @ basis / support.sum(-1, keepdim=True)
    rank = torch.linalg.matrix_rank(support[:, :, None] * (basis - mean[:, None, :]), rtol=RTOL)
    return left * (torch.arange(size.shape[1], device=rank.device) < rank[:, None])[:, None, :], size, right


def _gram(query: Tensor, key: Tensor, shown: Tensor) -> Tensor:
    """`J J^T`, *(n r, n r)*, of the Jacobian of `W_i^T ds_i` in query and key, for all rows i.

    Blocks are `q_i . q_k W_i^T W_k`, and on the diagonal also `(W_i^T K) (W_i^T K)^T`, all over d_key.
    """
    n, _, r = shown.shape
    flat = shown.transpose(0, 1).flatten(1)
    gram = (flat.T @ flat).view(n, r, n, r) * (query @ query.T)[:, None, :, None]
    by_query = shown.mT @ key
    gram.diagonal(dim1=0, dim2=2).add_((by_query @ by_query.mT).permute(1, 2, 0))
    return gram.view(n * r, n * r) / key.shape[1]
