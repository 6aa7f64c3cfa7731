"""Maximum-entropy attention: of all distributions with the same output, the one that claims least."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .effective import kept_weights
from .null_space import ValueDecomposition

MAX_STEPS = 500
DAMPING = 1e-13  # of the Hessian, whose entries are at most 1: directions flatter than this do not show in the output


class MaxEntropy(NamedTuple):
    """A map whose rows have the largest entropy that the head's output allows.

    Attributes:
        weights: The map, *(..., n, n)*; 0 outside `keep` and wherever the raw weight is 0.
        converged: For each row, *(..., n)*, whether it has the raw row's output and the largest possible entropy, both
            to the tolerance. True outside `keep`, where there is nothing to solve.
    """

    weights: Float[Tensor, "*batch n n"]
    converged: Bool[Tensor, "*batch n"]


@torch.no_grad()
def max_entropy_attention(
    weights: Float[Tensor, "*batch n n"],
    values: Float[Tensor, "*batch n d_value"],
    output_map: Float[Tensor, "*maps d_value d_model"] | None = None,
    keep: Bool[Tensor, "*texts n"] | None = None,
    tolerance: float = 1e-8,
) -> MaxEntropy:
    """For each row a the distribution a' of largest entropy on its support with `a' T = a T`.

    Source: ours; 1908.04211, section 3.2, asks for a probabilistic variant of effective attention. It is
    `a' = softmax(U_c lambda)` over the support, where lambda minimises the convex dual
    `logsumexp(U_c lambda) - lambda . (U_c^T a)`.

    Args:
        weights: A head's attention weights. A row keeps its sum, be it 1 only to float32's precision.
        values: A head's values, biases included.
        output_map: The head's block of the output map; None stands for the identity.
        keep: True for tokens, False for padding, where the result is 0.
        tolerance: Largest error of a row's output, relative to the output, and largest loss of its entropy, in nats.

    Shape:
        weights: *(..., n, n)*; values: *(..., n, d_value)*; output_map: *(..., d_value, d_model)*; keep: *(..., n)*.

    Raises:
        ValueError: If a kept value or weight is not finite; the message names its leading index.
    """
    decomposition = ValueDecomposition(values, output_map, keep)
    raw = kept_weights(weights, decomposition.keep)
    total = raw.sum(-1, keepdim=True)
    rows = torch.where(total > 0, raw / total, 0.0)
    basis = decomposition.basis(centred=True)
    sizes = decomposition.centred_singular_values[..., None, :] / output_size(rows, decomposition.matrix)[..., None]
    parts = (part.reshape(-1, *part.shape[-2:]) for part in (rows, basis, sizes.nan_to_num()))
    solved = [_maximise(row, base, size, tolerance) for row, base, size in zip(*parts, strict=True)]
    answer, converged = (torch.stack(part) for part in zip(*solved, strict=True))
    return MaxEntropy(answer.view_as(raw) * total, converged.view(raw.shape[:-1]))


def output_size(
    rows: Float[Tensor, "*batch rows n"], matrix: Float[Tensor, "*batch n d"]
) -> Float[Tensor, "*batch rows"]:
    """What errors of a row's output are relative to: `|a T|`, or `max |t_j|` where a T is 0 to rounding."""
    output = (rows @ matrix).norm(dim=-1)
    largest = matrix.norm(dim=-1).amax(-1, keepdim=True)
    return torch.where(output > torch.finfo(torch.float64).eps * largest, output, largest)


def _maximise(
    rows: Float[Tensor, "rows n"], basis: Float[Tensor, "n k"], sizes: Float[Tensor, "rows k"], tolerance: float
) -> tuple[Float[Tensor, "rows n"], Bool[Tensor, " rows"]]:
    """Newton's method on the dual for all rows of one head, those that have converged left out.

    It starts at `U_c^T log a`, the answer where the row is identifiable. A row whose sum is 0 is its own answer.
    `sizes` weighs the coordinates `U_c^T (a' - a)` so that their norm is the relative error of the output.
    """
    products = (basis[:, :, None] * basis[:, None, :]).flatten(1)
    answer, open_rows = rows.clone(), rows.any(-1).nonzero()[:, 0]
    logits = torch.where(rows > 0, rows.log(), 0.0) @ basis @ basis.T
    for _ in range(MAX_STEPS):
        target, current = rows[open_rows], logits[open_rows]
        answer[open_rows] = weights = current.masked_fill(target == 0, -torch.inf).softmax(-1)
        gradient = (weights - target) @ basis
        # The entropy of a' is the dual's value less this, and the dual bounds the entropy of every candidate.
        lost = (current * (weights - target)).sum(-1)
        far = ~(((gradient * sizes[open_rows]).norm(dim=-1) <= tolerance) & (lost <= tolerance))
        open_rows = open_rows[far]
        if not len(open_rows):
            break
        step = _newton_step(weights[far], gradient[far], basis, products)
        logits[open_rows] = current[far] + step
    return answer, rows.new_ones(len(rows), dtype=torch.bool).index_fill(0, open_rows, False)


def _newton_step(weights: Tensor, gradient: Tensor, basis: Tensor, products: Tensor) -> Tensor:
    """The damped Newton step in the logits, *(rows, n)*, which never raises the dual.

    Along a direction that spreads the logits by s, the dual's third derivative is at most s times its second; so the
    step `log(1 + s) / s` minimises an upper bound of it, and no search is needed.
    """
    mean = weights @ basis
    hessian = (weights @ products).unflatten(-1, basis.shape[1:] * 2) - mean[:, :, None] * mean[:, None, :]
    hessian.diagonal(dim1=-2, dim2=-1).add_(DAMPING)
    factor = torch.linalg.cholesky_ex(hessian).L
    step = -torch.cholesky_solve(gradient[..., None], factor)[..., 0] @ basis.T
    spread = step.masked_fill(weights == 0, 0.0)
    spread = (spread.amax(-1) - spread.amin(-1)).clamp(min=DAMPING)[:, None]
    return step * (spread.log1p() / spread)
