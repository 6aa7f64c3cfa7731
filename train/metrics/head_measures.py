"""What the monitor counts: measures of every (text, layer, head), added up over a validation."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from ...models import HeadRecord
from ...models.identifiability.effective import Agreement, agreement, effective_from, kept_weights
from ...models.identifiability.key_constrained import ambiguity_of_rows
from ...models.identifiability.null_space import ValueDecomposition, refuse_non_finite
from ...models.identifiability.slack import slack_of_rows

# Logged as group/name, the mean over all (text, head) pairs in which it is a number; the margin's median.
MEASURES = (
    "identifiability/identifiable",
    "identifiability/nullity",
    "identifiability/simplex_nullity",
    "identifiability/margin",
    "identifiability/key_ambiguity",
    "identifiability/slack",
    "effective_attention/pearson",
    "effective_attention/pearson_preserve_sum",
    "effective_attention/residual",
    "effective_attention/negative_mass",
)
MEDIANS = frozenset({"identifiability/margin"})
ROWS = 4  # of a text whose key ambiguity and slack are measured
BLOCK = 2**22  # numbers of an intermediate result
BUCKET = 8  # tokens per length bucket: 1-8, 9-16, ...


def measure_heads(record: HeadRecord, rows: int | None = ROWS, seed: int = 0) -> Tensor:
    """Measure every head for every text of a record.

    Args:
        record: What the heads of one layer did.
        rows: Key ambiguity and slack are means over so many rows of a text, see `sample_rows`; None: over all.
        seed: Chooses the rows.

    Shape:
        result: *(texts, heads, measures)*, float64, in the order of `MEASURES`; NaN where a measure is not defined.

    Raises:
        ValueError: If a key, a value or a weight is not finite.
    """
    key, value = record.key, record.value
    keep = value.new_ones(len(value), value.shape[-2], dtype=torch.bool)
    keep = keep if record.keep is None else record.keep.to(value.device)
    shared = record.heads.num_value_heads == 1 and record.merge_heads != "concat"  # then T is the same for all heads
    distinct = slice(1) if shared else slice(None)
    decomposition = ValueDecomposition(value[:, distinct], record.output_map[distinct], keep[:, None])
    weights = kept_weights(record.weights, decomposition.keep)
    agreements = [
        agreement(weights, effective_from(weights, decomposition, preserve_sum=kept), keep[:, None])
        for kept in (False, True)
    ]
    key = key.masked_fill(~keep[:, None, :, None], 0.0)
    refuse_non_finite("keys", key)
    sampled = sample_rows(keep, rows, seed)
    measures = [*_spaces(decomposition), *_row_means(weights, key, decomposition, sampled), *_differences(*agreements)]
    return torch.stack([measure.double().expand(weights.shape[:2]) for measure in measures], -1)


def sample_rows(keep: Tensor, rows: int | None, seed: int) -> Tensor:
    """Which rows of each text are measured: the first token's and others of a fixed choice.

    The first is there because pooling `first` classifies by it. The choice depends on the seed and on how many tokens
    a text has, not on its padding or the other texts.

    Shape:
        keep and result: *(texts, tokens)*, bool.
    """
    sampled = torch.zeros_like(keep)
    for text, kept in enumerate(keep):
        positions = kept.nonzero()[:, 0]
        generator = torch.Generator().manual_seed(seed)
        others = 1 + torch.randperm(max(len(positions) - 1, 0), generator=generator)
        chosen = torch.cat([others.new_zeros(1), others])[:rows] if len(positions) else others
        sampled[text, positions[chosen.to(positions.device)]] = True
    return sampled


def _spaces(decomposition: ValueDecomposition) -> list[Tensor]:
    """Identifiable (NaN for a text of no tokens), nullity, simplex nullity and margin, each *(texts, heads)*."""
    space = decomposition.null_space()
    identifiable = space.identifiable.double().masked_fill(space.length == 0, torch.nan)
    return [identifiable, space.nullity, space.simplex_nullity, space.margin]


def _differences(plain: Agreement, summed: Agreement) -> list[Tensor]:
    return [plain.pearson, summed.pearson, plain.residual, plain.negative_mass]


def _row_means(weights: Tensor, keys: Tensor, decomposition: ValueDecomposition, sampled: Tensor) -> list[Tensor]:
    """Key ambiguity and slack of the largest weight, means over a text's sampled rows, each *(texts, heads)*.

    Rows of an identifiable head have neither, so only the others' are computed, in blocks of bounded memory.
    """
    is_open = (decomposition.null_space().simplex_nullity > 0).expand(weights.shape[:2])
    basis, matrix, keep = decomposition.basis(centred=True), decomposition.matrix, decomposition.keep
    sums = weights.new_zeros(2, *is_open.shape)
    for block in (is_open[..., None] & sampled[:, None]).nonzero().split(max(1, BLOCK // weights.shape[-1] ** 2)):
        text, head, token = block.unbind(1)
        row = weights[text, head, token][:, None]  # (block, 1, tokens)
        value = head % matrix.shape[1]
        ambiguity = ambiguity_of_rows(row, keys[text, head], matrix[text, value]).ambiguity
        lower, upper = slack_of_rows(row, basis[text, value], keep[text, value])
        slack = (upper - lower).gather(-1, row.argmax(-1, keepdim=True))[..., 0]
        for total, of_rows in zip(sums, (ambiguity, slack), strict=True):
            total.index_put_((text, head), of_rows[:, 0].double(), accumulate=True)
    return list(sums / sampled.sum(-1)[:, None])


class Group(NamedTuple):
    """Measures of one layer, head and length bucket: `texts` texts of `length_from` to `length_to` tokens."""

    layer: int
    head: int
    length_from: int
    length_to: int
    texts: int
    measures: dict[str, float]


class HeadMeasures(Metric):
    """Measures of (text, layer, head) triples, summarised over all of them, by layer, or by layer, head and length.

    It keeps one row of numbers per triple, no tensor of the batch.
    """

    full_state_update = False
    rows: list[Tensor]

    def __init__(self):
        super().__init__()
        self.add_state("rows", [], dist_reduce_fx="cat")
        self.reset()

    def reset(self) -> None:
        """Forget everything. One empty block stays, so that a process that saw no text can take part in a sync."""
        self.rows = []  # one block, where it was synced
        super().reset()
        self.rows = [torch.empty(0, 3 + len(MEASURES), dtype=torch.float64, device=self.device)]

    def update(self, layer: int, lengths: Tensor, measures: Tensor) -> None:
        """Add the measures *(texts, heads, measures)* of a layer for texts of some lengths *(texts,)*."""
        texts, heads, _ = measures.shape
        keys = torch.empty(texts, heads, 3, dtype=torch.float64, device=measures.device)
        keys[..., 0], keys[..., 1], keys[..., 2] = layer, torch.arange(heads, device=keys.device), lengths[:, None]
        self.rows.append(torch.cat([keys, measures], -1).flatten(0, 1).to(self.device))

    def compute(self) -> dict[str, float]:
        """The summary over all processes."""
        return self.summary()

    def summary(self) -> dict[str, float]:
        """Every measure over all triples, by its name, and per layer, by `layer_<number>/` and its name."""
        rows = self._all()
        summary = summarise(rows)
        for layer in rows[:, 0].unique().tolist():
            of_layer = summarise(rows[rows[:, 0] == layer])
            summary |= {f"layer_{int(layer)}/{name}": value for name, value in of_layer.items()}
        return summary

    def values(self) -> dict[str, Tensor]:
        """All numbers of each measure in each layer *(triples,)*, by `layer_<number>/` and the measure's name."""
        rows = self._all()
        return {
            f"layer_{int(layer)}/{name}": numbers
            for layer in rows[:, 0].unique().tolist()
            for name, column in zip(MEASURES, rows[rows[:, 0] == layer, 3:].unbind(1), strict=True)
            if len(numbers := column[~column.isnan()])
        }

    def groups(self) -> list[Group]:
        """Measures by layer, head and length bucket."""
        rows = self._all()
        bucketed = torch.cat([rows[:, :2], (rows[:, 2:3] - 1).clamp(min=0) // BUCKET], 1)
        keys, places = bucketed.unique(dim=0, return_inverse=True)
        groups = []
        for number, (layer, head, bucket) in enumerate(keys.int().tolist()):
            part = rows[places == number]
            groups.append(Group(layer, head, bucket * BUCKET + 1, (bucket + 1) * BUCKET, len(part), summarise(part)))
        return groups

    def _all(self) -> Tensor:
        return torch.cat(self.rows) if isinstance(self.rows, list) else self.rows


def summarise(rows: Tensor) -> dict[str, float]:
    """The mean or median of each measure over rows *(triples, 3 + measures)*; one without a number is left out."""
    columns = rows[:, 3:].cpu()
    means = columns.nanmean(0).tolist()
    return {
        name: float(np.nanmedian(columns[:, place])) if name in MEDIANS else mean
        for place, (name, mean) in enumerate(zip(MEASURES, means, strict=True))
        if not math.isnan(mean)
    }
