"""All that can be said of one head's attention over one text: its map, other maps, and how far weights could go."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...models import HeadRecord
from ...models.identifiability import attention_intervals, max_entropy_attention
from ...models.identifiability.effective import effective_from
from ...models.identifiability.intervals import Intervals
from ...models.identifiability.key_constrained import ambiguity_of_rows
from ...models.identifiability.null_space import ValueDecomposition
from ...models.identifiability.slack import slack_of_rows
from .head_measures import BLOCK


@dataclass(frozen=True)
class HeadMaps:
    """What one head does with one text of n tokens, and what it could do unseen; float64.

    Attributes:
        raw: Attention weights, *(n, n)*.
        effective: Effective attention, *(n, n)*.
        effective_preserve_sum: The same with row sums kept.
        max_entropy: Maximum-entropy attention, *(n, n)*.
        max_entropy_converged: Whether each of its rows was found, *(n,)*.
        slack_lower: What each weight can at least fall to, *(n, n)*.
        slack_upper: What each weight can at least rise to.
        key_ambiguity_by_row: Dimension of what a query can change unseen, for each row, *(n,)*.
        intervals: Exact intervals of the rows that they were asked for, by the row's token.
    """

    raw: Tensor
    effective: Tensor
    effective_preserve_sum: Tensor
    max_entropy: Tensor
    max_entropy_converged: Tensor
    slack_lower: Tensor
    slack_upper: Tensor
    key_ambiguity_by_row: Tensor
    intervals: dict[int, Intervals]


def head_maps(record: HeadRecord, head: int, tokens: Sequence[int] = ()) -> HeadMaps:
    """The maps of a head for a record of one text without padding, with the exact intervals of some tokens' rows.

    Raises:
        ValueError: If a key, a value or a weight is not finite.
        RuntimeError: If the intervals of a row were not found, which rounding alone can cause.
    """
    weights, keys, values = record.weights[0, head], record.key[0, head], record.value[0, head]
    output_map = record.output_map[head]
    decomposition = ValueDecomposition(values, output_map)
    found = max_entropy_attention(weights, values, output_map)
    lower, upper, ambiguity = _by_row(weights, keys, decomposition)
    return HeadMaps(
        raw=weights,
        effective=effective_from(weights, decomposition, preserve_sum=False),
        effective_preserve_sum=effective_from(weights, decomposition, preserve_sum=True),
        max_entropy=found.weights,
        max_entropy_converged=found.converged,
        slack_lower=lower,
        slack_upper=upper,
        key_ambiguity_by_row=ambiguity,
        intervals={token: attention_intervals(weights[token], values, output_map) for token in tokens},
    )


def _by_row(weights: Tensor, keys: Tensor, decomposition: ValueDecomposition) -> tuple[Tensor, Tensor, Tensor]:
    """Slack, *(n, n)* each, and key ambiguity, *(n,)*, in blocks of bounded memory; none where identifiable."""
    basis = decomposition.basis(centred=True)
    if not decomposition.null_space().simplex_nullity:
        return weights, weights, torch.zeros(len(weights), dtype=torch.long)
    blocks = []
    for rows in weights.split(max(1, BLOCK // len(weights) ** 2)):
        slack = slack_of_rows(rows, basis, decomposition.keep)
        blocks.append((*slack, ambiguity_of_rows(rows, keys, decomposition.matrix).ambiguity))
    lower, upper, ambiguity = (torch.cat(part) for part in zip(*blocks, strict=True))
    return lower, upper, ambiguity
