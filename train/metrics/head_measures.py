"""What the monitor counts: measures of every (text, layer, head), added up over a validation."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from ...models import HeadRecord
from ...models.identifiability.effective import agreement, effective_from
from ...models.identifiability.null_space import ValueDecomposition

# Logged as group/name, the mean over all (text, head) pairs in which it is a number; the margin's median.
MEASURES = (
    "identifiability/identifiable",
    "identifiability/nullity",
    "identifiability/simplex_nullity",
    "identifiability/margin",
    "effective_attention/pearson",
    "effective_attention/pearson_preserve_sum",
    "effective_attention/residual",
    "effective_attention/negative_mass",
)
MEDIANS = frozenset({"identifiability/margin"})
BUCKET = 8  # tokens per length bucket: 1-8, 9-16, ...


def measure_heads(record: HeadRecord) -> Tensor:
    """Measure every head for every text of a record.

    Shape:
        result: *(texts, heads, measures)*, float64, in the order of `MEASURES`; NaN where a measure is not defined.

    Raises:
        ValueError: If a value or a weight is not finite.
    """
    weights = record.weights
    keep = None if record.keep is None else record.keep.to(weights.device)[:, None]  # (text, 1, token)
    decomposition = ValueDecomposition(record.value, record.output_map, keep)
    space = decomposition.null_space()
    if keep is not None:
        weights = weights.masked_fill(~keep[..., None], 0.0)
    plain = agreement(weights, effective_from(weights, decomposition, preserve_sum=False), keep)
    summed = agreement(weights, effective_from(weights, decomposition, preserve_sum=True), keep)
    identifiable = space.identifiable.double().masked_fill(space.length == 0, torch.nan)
    measures = [identifiable, space.nullity, space.simplex_nullity, space.margin]
    measures += [plain.pearson, summed.pearson, plain.residual, plain.negative_mass]
    return torch.stack([measure.double() for measure in measures], -1)


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
        super().reset()
        self.rows = [torch.empty(0, 3 + len(MEASURES), dtype=torch.float64, device=self.device)]

    def update(self, layer: int, lengths: Tensor, measures: Tensor) -> None:
        """Add the measures *(texts, heads, measures)* of a layer for texts of some lengths *(texts,)*."""
        texts, heads, _ = measures.shape
        keys = torch.empty(texts, heads, 3, dtype=torch.float64, device=measures.device)
        keys[..., 0], keys[..., 1], keys[..., 2] = layer, torch.arange(heads, device=keys.device), lengths[:, None]
        self.rows.append(torch.cat([keys, measures], -1).flatten(0, 1).to(self.device))

    def compute(self) -> dict[str, float]:
        """Every measure over all triples, by its name, and per layer, by `layer_<number>/` and its name."""
        rows = self._all()
        summary = summarise(rows)
        for layer in rows[:, 0].unique().tolist():
            of_layer = summarise(rows[rows[:, 0] == layer])
            summary |= {f"layer_{int(layer)}/{name}": value for name, value in of_layer.items()}
        return summary

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
    summary = {}
    for name, column in zip(MEASURES, rows[:, 3:].unbind(1), strict=True):
        numbers = column[~column.isnan()]
        if len(numbers):
            summary[name] = float((np.median if name in MEDIANS else np.mean)(numbers.cpu().numpy()))
    return summary
