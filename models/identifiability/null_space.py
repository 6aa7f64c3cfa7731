"""The left null space of what a head's weights multiply: which other attention maps give the same output.

A head's output is `A T` with `T = V W_O`. Whatever lies in `LN(T) = {x : x^T T = 0}` can be added to a row of `A`
unseen (1908.04211, section 3). Such a row still sums to 1 only if x does to 0: the *simplex* null space,
`{x : x^T [T, 1] = 0}`.
"""

from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

FLOAT32_EPSILON = torch.finfo(torch.float32).eps


class NullSpace(NamedTuple):
    """Null space of one head for one text, each field of shape *(...)*.

    Attributes:
        length: Kept tokens, n.
        rank: Rank of T.
        rank_with_ones: Rank of [T, 1].
        nullity: `n - rank`.
        simplex_nullity: `n - rank_with_ones`, the dimension of the alternatives whose rows still sum to 1.
        margin: The least relative change of the output under any unit shift of weight; NaN for a text of no tokens.
    """

    length: Int[Tensor, "*batch"]
    rank: Int[Tensor, "*batch"]
    rank_with_ones: Int[Tensor, "*batch"]
    nullity: Int[Tensor, "*batch"]
    simplex_nullity: Int[Tensor, "*batch"]
    margin: Float[Tensor, "*batch"]

    @property
    def identifiable(self) -> Bool[Tensor, "*batch"]:
        """Whether the output determines the weights: there are tokens, and the simplex nullity is 0."""
        return (self.length > 0) & (self.simplex_nullity == 0)


class LayerNullSpace(NamedTuple):
    """Null spaces of all heads together, seen from the layer's output, each field of shape *(...)*.

    Attributes:
        joint_nullity: Dimension of the shifts of all heads' rows that the layer's output does not show.
        joint_simplex_nullity: The same, every head's row still summing to 1.
        merged: Null space of the averaged map, where all heads share one value map and one output map; else None.
    """

    joint_nullity: Int[Tensor, "*batch"]
    joint_simplex_nullity: Int[Tensor, "*batch"]
    merged: NullSpace | None


class ValueDecomposition:
    """Singular value decompositions of T and of T less its mean row, on which all measures of a head rest.

    Made from `values (..., n, d_value)`, `output_map (..., d_value, d_model)` or None (then T = V) and `keep (..., n)`.
    Everything is float64. T is reduced to as many columns as it can have rank, with the same left null space and norms.

    Raises:
        ValueError: If a kept value is not finite; the message names its leading index.
    """

    def __init__(
        self,
        values: Float[Tensor, "*batch n d_value"],
        output_map: Float[Tensor, "*maps d_value d_model"] | None = None,
        keep: Bool[Tensor, "*texts n"] | None = None,
        rtol: float | None = None,
    ):
        kept = values.new_ones(values.shape[-2], dtype=torch.bool) if keep is None else keep
        self.keep = kept.broadcast_to(values.shape[:-1])
        self.length = self.keep.sum(-1)
        self.matrix = _reduced(values.double().masked_fill(~self.keep[..., None], 0.0), output_map)
        refuse_non_finite("values", self.matrix)
        self.centred = _centred(self.matrix, self.keep)
        self._bases: dict[bool, Tensor] = {}
        width = self.length.clamp(min=values.shape[-1])
        self._rtol = width * FLOAT32_EPSILON if rtol is None else torch.full_like(width, rtol, dtype=torch.float64)

    @cached_property
    def singular_values(self) -> Float[Tensor, "*batch k"]:
        """Singular values of T, falling."""
        return torch.linalg.svdvals(self.matrix)

    @cached_property
    def centred_singular_values(self) -> Float[Tensor, "*batch k"]:
        """Singular values of T less its mean row, falling."""
        return torch.linalg.svdvals(self.centred)

    @property
    def tolerance(self) -> Float[Tensor, "*batch"]:
        """Singular values up to this count as 0: `rtol` times the largest of T."""
        return self._rtol * self.singular_values[..., 0]

    def basis(self, *, centred: bool = False) -> Float[Tensor, "*batch n k"]:
        """Orthonormal basis of the columns of T, or of T less its mean row; columns past the rank are 0."""
        if centred not in self._bases:
            left, singular_values, _ = torch.linalg.svd(self.centred if centred else self.matrix, full_matrices=False)
            name = "centred_singular_values" if centred else "singular_values"
            vars(self).setdefault(name, singular_values)  # computed once
            self._bases[centred] = left * (singular_values > self.tolerance[..., None])[..., None, :]
        return self._bases[centred]

    def null_space(self) -> NullSpace:
        """Ranks, nullities and margin."""
        tolerance = self.tolerance[..., None]
        some = self.length > 0
        rank = (self.singular_values > tolerance).sum(-1)
        rank_with_ones = (1 + (self.centred_singular_values > tolerance).sum(-1)) * some
        return NullSpace(
            length=self.length,
            rank=rank,
            rank_with_ones=rank_with_ones,
            nullity=self.length - rank,
            simplex_nullity=self.length - rank_with_ones,
            margin=self._margin().masked_fill(~some, torch.nan),
        )

    def _margin(self) -> Float[Tensor, "*batch"]:
        """`sigma_{n-1}` of the centred T over `sigma_1` of T; 1 for a single token."""
        place = (self.length - 2).clamp(min=0)[..., None]
        number = self.centred_singular_values.shape[-1]
        smallest = self.centred_singular_values.gather(-1, place.clamp(max=number - 1))[..., 0]
        smallest = smallest.masked_fill(place[..., 0] >= number, 0.0)
        largest = self.singular_values[..., 0]
        margin = torch.where(largest > 0, smallest / largest, 0.0)
        return margin.masked_fill(self.length == 1, 1.0)


def null_space(
    values: Float[Tensor, "*batch n d_value"],
    output_map: Float[Tensor, "*maps d_value d_model"] | None = None,
    keep: Bool[Tensor, "*texts n"] | None = None,
    rtol: float | None = None,
) -> NullSpace:
    """Null space of `T = values @ output_map` over the kept tokens (1908.04211, section 3; 2106.01269, section 3).

    A singular value counts where it exceeds `rtol` times the largest of T. By default `rtol` is `max(n, d_value)` times
    the precision of float32, whatever dtype the values have, since that is what activations are computed in.

    Args:
        values: A head's values, biases included.
        output_map: The head's block of the output map; None stands for the identity.
        keep: True for tokens, False for padding, which is left out before anything is decomposed.
        rtol: Relative tolerance of the rank.

    Shape:
        values: *(..., n, d_value)*; output_map: *(..., d_value, d_model)*; keep: *(..., n)*; each result: *(...)*.

    Raises:
        ValueError: If a kept value is not finite; the message names its leading index.
    """
    return ValueDecomposition(values, output_map, keep, rtol).null_space()


def layer_null_space(
    values: Float[Tensor, "*batch num_value_heads n d_value"],
    output_map: Float[Tensor, "maps d_value d_model"],
    num_heads: int,
    merge_heads: str,
    keep: Bool[Tensor, "*batch n"] | None = None,
) -> LayerNullSpace:
    """Null spaces of a layer's heads together: what the sum of all `A_h T_h` leaves open.

    Args:
        values: Values of the distinct value heads.
        output_map: One map per head for `"concat"`; the one shared map for `"sum"` and `"mean"`.
        num_heads: Number of attention maps, h.
        merge_heads: `"concat"`, `"sum"` or `"mean"`.
        keep: True for tokens, False for padding.

    Shape:
        values: *(..., num_value_heads, n, d_value)*; output_map: *(num_heads or 1, d_value, d_model)*;
        keep: *(..., n)*; each result: *(...)*.

    Raises:
        ValueError: If a kept value is not finite, or `output_map` has not one map per head for `"concat"` and one else.
    """
    maps = num_heads if merge_heads == "concat" else 1
    if len(output_map) != maps:
        raise ValueError(f"output_map holds {len(output_map)} maps: {merge_heads!r} of {num_heads} heads needs {maps}.")
    number = values.shape[-3]
    distinct = values.repeat_interleave(max(maps // number, 1), dim=-3)  # concatenated heads differ by their maps
    kept = values.new_ones(values.shape[-2], dtype=torch.bool) if keep is None else keep[..., None, :]
    kept = kept.broadcast_to(distinct.shape[:-1])
    matrix = distinct.double().masked_fill(~kept[..., None], 0.0) @ output_map.double()
    refuse_non_finite("values", matrix)
    tokens = kept[..., 0, :].sum(-1) * num_heads
    stacked = torch.linalg.svdvals(matrix.flatten(-3, -2))
    centred = torch.linalg.svdvals(_centred(matrix, kept).flatten(-3, -2))
    tolerance = (tokens.clamp(min=values.shape[-1]) * FLOAT32_EPSILON * stacked[..., 0])[..., None]
    one = maps == number == 1
    merged = null_space(values[..., 0, :, :], output_map[0], keep=kept[..., 0, :]) if one else None
    return LayerNullSpace(
        joint_nullity=tokens - (stacked > tolerance).sum(-1),
        joint_simplex_nullity=(tokens - num_heads - (centred > tolerance).sum(-1)).clamp(min=0),
        merged=merged,
    )


def orthonormal_basis(
    matrix: Float[Tensor, "*batch n k"], tolerance: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch n r"]:
    """Orthonormal basis of the columns, r = min(n, k), 0 past the rank; singular values up to `tolerance` count as 0.

    The rank is certainly full where `1 / |R^-1| <= sigma_k` exceeds the tolerance, R from the thin QR; there its Q,
    several times cheaper than the SVD, is the answer.
    """
    n, k = matrix.shape[-2:]
    if n < k:
        return _basis_by_svd(matrix, tolerance)
    basis, triangle = torch.linalg.qr(matrix)
    eye = torch.eye(k, dtype=matrix.dtype, device=matrix.device)
    inverse = torch.linalg.solve_triangular(triangle, eye, upper=True)
    unsure = ~(1 / torch.linalg.matrix_norm(inverse) > tolerance)
    if unsure.any():
        basis[unsure] = _basis_by_svd(matrix[unsure], tolerance[unsure])
    return basis


def _basis_by_svd(matrix: Tensor, tolerance: Tensor) -> Tensor:
    left, singular_values, _ = torch.linalg.svd(matrix, full_matrices=False)
    return left * (singular_values > tolerance[..., None])[..., None, :]


def refuse_non_finite(name: str, tensor: Tensor) -> None:
    """Raise a ValueError that names the first leading index where a matrix of `tensor` (..., n, d) is not finite."""
    bad = ~tensor.isfinite().flatten(-2).all(-1)
    if bad.any():
        index = tuple(bad.nonzero()[0].tolist())
        raise ValueError(f"{name} holds a number that is not finite at index {index}: its null space is not defined.")


def _centred(matrix: Tensor, keep: Tensor) -> Tensor:
    mean = matrix.sum(-2, keepdim=True) / keep.sum(-1).clamp(min=1)[..., None, None]
    return (matrix - mean).masked_fill(~keep[..., None], 0.0)


def _reduced(values: Tensor, output_map: Tensor | None) -> Tensor:
    """T, or a narrower matrix with the same Gram matrix `T T^T`, by thin QRs: of the output map's transpose, of T's."""
    if output_map is not None:
        output_map = output_map.double()
        wide = output_map.shape[-1] > output_map.shape[-2]
        values = values @ (torch.linalg.qr(output_map.mT, mode="r").R.mT if wide else output_map)
    n, width = values.shape[-2:]
    return torch.linalg.qr(values.mT, mode="r").R.mT if width > n else values
