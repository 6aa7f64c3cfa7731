"""How much each input token contributes to each hidden state, by derivatives: pure functions, one for any model."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

BLOCK = 2**20  # numbers of a layer's states in one forward-mode product


class Attribution(NamedTuple):
    """Contributions of input tokens to hidden tokens, a list by layer, each *(..., n, n)*, float64, on the CPU.

    Row i is the hidden token, column j the input token. Rows of tokens sum to 1; rows and columns of padding are 0.

    Attributes:
        contributions: `c_ij`; NaN in a row whose hidden token depends on no input.
        standard_error: Of each contribution; 0 where it is exact.
    """

    contributions: list[Tensor]
    standard_error: list[Tensor]


class ContextProfile(NamedTuple):
    """What contributions say of how far tokens mix.

    Attributes:
        own_share: Contribution of each token's own input, *(..., n)*; NaN outside `keep`.
        not_led_by_own: Share of the tokens whose own input is not the largest contributor, *(...)*.
        distance: Places of the input token after the hidden one, from `1 - n` to `n - 1`, padding not counted,
            *(2n - 1,)*.
        by_distance: Mean contribution over the pairs of tokens of each distance, *(..., 2n - 1)*; NaN without a pair.
    """

    own_share: Float[Tensor, "*batch n"]
    not_led_by_own: Float[Tensor, "*batch"]
    distance: Tensor
    by_distance: Float[Tensor, "*batch distances"]


def input_contributions(
    states: Callable[[Tensor], Sequence[Tensor]],
    inputs: Float[Tensor, "*stack n d"],
    keep: Bool[Tensor, "*texts n"] | None = None,
    probes: int | None = None,
    seed: int = 0,
    chunk: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Attribution:
    """Hidden token attribution, `c_ij = |d e_i / d x_j| / sum_k |d e_i / d x_k|`, Frobenius norms, k over the tokens.

    Source: 1908.04211, section 5. A forward-mode product with a tangent on one token gives a column of the derivatives
    of every layer at once. Texts do not touch each other, so a product takes one token of every text. Sampled, m
    tangents v of random signs on token j give `|d e_i / d x_j|^2` as the mean of `|(d e_i / d x_j) v|^2`, without bias;
    contributions, being quotients of roots, have one that falls as 1/m. Their standard errors are by the delta method:
    with the squares' mean and variance s^2, `v_ij = s^2 / (4 m mean^2)` is that of the norm's logarithm, and
    `se(c_ij)^2 = c_ij^2 [(1 - c_ij)^2 v_ij + sum_{k != j} c_ik^2 v_ik]`.

    Args:
        states: From inputs to the states of every layer; differentiable by `torch.func.jvp` under `torch.func.vmap`.
        inputs: Where the derivatives are taken.
        keep: True for tokens, False for padding.
        probes: Random tangents per token, at least 2; None: all d directions, exactly.
        seed: Chooses the probes.
        chunk: Tangents per product; None: as many as keep a layer's states within `BLOCK` numbers.
        progress: Called with the tangents done and all tangents after every product.

    Shape:
        inputs: *(..., n, d)*; keep: *(..., n)*; states: a sequence of *(..., n, d_state)*; results: *(..., n, n)* for
        each. The inputs may have leading dimensions that the states have not, as one input for each layer.

    Raises:
        ValueError: If a derivative is not finite, naming the layer and its leading index, or there are too few probes.
    """
    if probes is not None and probes < 2:
        raise ValueError(f"probes is {probes}: standard errors need at least 2.")
    keep = inputs.new_ones(inputs.shape[-2], dtype=torch.bool) if keep is None else keep.to(inputs.device)
    rank = keep.cumsum(-1).masked_fill(~keep, 0) - 1  # place among the tokens of the text; -1 for padding
    directions = _directions(int(keep.sum(-1).max()), inputs, probes, seed)
    found = []
    for layer, moments in enumerate(_moments(states, inputs, rank, directions, chunk, progress)):
        first, second = _by_position(moments, rank.cpu())
        _refuse_non_finite(first, layer)
        share = _shares(first, keep.cpu())
        found.append((share, torch.zeros_like(share) if probes is None else _errors(share, first, second, probes)))
    return Attribution(*map(list, zip(*found, strict=True)))


def context_profile(
    contributions: Float[Tensor, "*batch n n"], keep: Bool[Tensor, "*texts n"] | None = None
) -> ContextProfile:
    """How much of a hidden token is its own input's, and from how far the rest comes.

    Source: 1908.04211, section 5.

    Args:
        contributions: Of one layer, as `input_contributions` gives them.
        keep: True for tokens, False for padding.

    Shape:
        contributions: *(..., n, n)*; keep: *(..., n)*; results: see `ContextProfile`. Of a text of no tokens everything
        is NaN.
    """
    n = contributions.shape[-1]
    keep = torch.ones(n, dtype=torch.bool) if keep is None else keep.to(contributions.device)
    keep = keep.expand(contributions.shape[:-1])
    own = contributions.diagonal(dim1=-2, dim2=-1).masked_fill(~keep, torch.nan)
    known = ~own.isnan()
    led = contributions.amax(-1) > own if n else known
    pairs = (known[..., None] & keep[..., None, :]).flatten(-2)
    place = keep.cumsum(-1)
    apart = (place[..., None, :] - place[..., None]).flatten(-2) + n - 1  # of the input from the hidden token
    distance = torch.arange(max(2 * n - 1, 0), device=keep.device) - (n - 1)
    sums, counts = (
        contributions.new_zeros(*keep.shape[:-1], len(distance)).scatter_add(-1, apart, part)
        for part in (contributions.flatten(-2).where(pairs, 0.0), pairs.to(contributions))
    )
    return ContextProfile(own, led.sum(-1) / known.sum(-1), distance, sums / counts)


def _directions(tokens: int, inputs: Tensor, probes: int | None, seed: int) -> Tensor:
    """Tangents of each token, by its place among those of its text, *(tokens, directions, d)*."""
    d = inputs.shape[-1]
    if probes is None:
        return torch.eye(d).expand(tokens, d, d)
    generator = torch.Generator().manual_seed(seed)  # a token's probes do not depend on how many follow it
    return 2.0 * torch.randint(2, (tokens, probes, d), generator=generator, dtype=torch.int8) - 1


def _moments(
    states: Callable[[Tensor], Sequence[Tensor]],
    inputs: Tensor,
    rank: Tensor,
    directions: Tensor,
    chunk: int | None,
    progress: Callable[[int, int], None] | None,
) -> list[Tensor]:
    """Sums over directions of `|(d e_i / d x_j) v|^2` and of its square, by layer, *(2, ..., n, tokens)*."""
    tokens, number, _ = directions.shape
    shapes = [state.shape for state in states(inputs)]
    totals = [torch.zeros(2, *shape[:-1], max(tokens, 1), dtype=torch.float64) for shape in shapes]
    chunk = chunk or max(1, BLOCK // max(1, *(shape.numel() for shape in shapes)))

    def push(token: Tensor, direction: Tensor) -> tuple[Tensor, ...]:
        tangent = ((rank == token)[..., None] * direction).expand(inputs.shape)
        return torch.func.jvp(lambda x: tuple(states(x)), (inputs,), (tangent,))[1]

    for start in range(0, tokens * number, chunk):
        done = min(start + chunk, tokens * number)
        place = torch.arange(start, done)
        token, direction = place // number, place % number
        batch = token.to(rank.device), directions[token, direction].to(inputs)
        for total, tangents in zip(totals, torch.func.vmap(push)(*batch), strict=True):
            squares = tangents.square().sum(-1).cpu().double().movedim(0, -1)  # (..., n, part)
            total.index_add_(-1, token, torch.stack([squares, squares**2]))
        if progress:
            progress(done, tokens * number)
    return totals


def _by_position(moments: Tensor, rank: Tensor) -> Tensor:
    """Moments *(2, ..., n, n)* by the position of the input token; 0 where either token is padding."""
    rank = rank.expand(moments.shape[1:-1])
    pairs = (rank >= 0)[..., None] & (rank >= 0)[..., None, :]
    columns = rank.clamp(min=0)[..., None, :].expand(pairs.shape)
    return moments.gather(-1, columns.expand(2, *pairs.shape)).where(pairs, 0.0)


def _shares(squares: Tensor, keep: Tensor) -> Tensor:
    """Contributions *(..., n, n)* from squared norms, or multiples of them; 0 for padding."""
    norms = squares.sqrt()
    return (norms / norms.sum(-1, keepdim=True)).where(keep[..., None], 0.0)


def _errors(shares: Tensor, first: Tensor, second: Tensor, probes: int) -> Tensor:
    """Standard errors *(..., n, n)* of shares, from the sums of the squares and of their squares over probes."""
    mean = first / probes
    variance = ((second - mean * first) / (probes - 1)).clamp(min=0)
    of_log = (variance / (4 * probes * mean**2)).nan_to_num(0.0, 0.0)  # where the mean is 0, so is every square
    parts = shares**2 * of_log
    return (shares**2 * ((1 - shares) ** 2 * of_log + parts.sum(-1, keepdim=True) - parts)).sqrt()


def _refuse_non_finite(squares: Tensor, layer: int) -> None:
    bad = ~squares.isfinite().flatten(-2).all(-1)
    if bad.any():
        index = tuple(bad.nonzero()[0].tolist())
        raise ValueError(f"A derivative of layer {layer} is not finite at index {index}: it has no contributions.")
