"""`swap_encoder_layers`."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..adapters import Heads, attention_modules, replace
from ..adapters import heads as heads_of
from ..layers.attention import MultiHeadAttention
from ..layers.presets import SIZES, AttentionSizes
from ..recording import HeadRecord, record_heads
from .preserving import check_preservable
from .preserving import preserve as preserve_function
from .saving import new_attention, note_swap


class SwapReport(NamedTuple):
    """What `swap_encoder_layers` did.

    Attributes:
        layers: Numbers of the layers that were swapped, from 0.
        sizes: The new attention's sizes, by layer.
        preserved: Whether the new layers started from what the old ones had learnt.
        score_error: The root mean square error of each head's attention scores relative to the scores' own,
            *(layers, head)*, weighted as the calibration batch has it; 0 where the function is exact. None if nothing
            was preserved.
        total_variation: The mean distance of each head's attention weights from the old ones in the calibration batch,
            *(layers, head)*, half the sum of absolute differences of a row. None without calibration.
    """

    layers: tuple[int, ...]
    sizes: tuple[AttentionSizes, ...]
    preserved: bool
    score_error: Tensor | None
    total_variation: Tensor | None

    def __str__(self) -> str:
        kinds = "; ".join(dict.fromkeys(_describe(sizes) for sizes in self.sizes))
        return f"{len(self.layers)} layers swapped: {kinds}; {self._kept()}"

    def _kept(self) -> str:
        if self.score_error is None:
            return "initialised afresh"
        if not self.score_error.any():
            return "the function is kept exactly"
        text = f"values are kept exactly, scores to {self.score_error.mean():.3f} of their root mean square"
        if self.total_variation is not None:
            text += f", weights to a total variation of {self.total_variation.mean():.3f}"
        return text


def swap_encoder_layers(
    model: nn.Module,
    layer: str = "identifiable",
    *,
    d_key: int | None = None,
    d_value: int | None = None,
    num_value_heads: int | None = None,
    merge_heads: str | None = None,
    layers: Iterable[int] | None = None,
    preserve: bool = True,
    calibration: Mapping[str, Any] | Tensor | None = None,
) -> SwapReport:
    """Swap the attention of a model's encoder layers for that of a preset, in place.

    The model keeps everything else, its signature, mode, device and precision. It trains, and a model of transformers
    saves and loads again, after `import identiformer.models`, through the Auto classes.

    With `preserve` it keeps its function, exactly unless keys become smaller: a larger `d_value` adds value columns
    that the output map does not see yet; added heads get `d_value = d_model`, each head's output map moved into its
    value map; smaller keys are the best approximation of each head's scores by so few, best on `calibration` where it
    is given.

    A model of transformers is given whole, since its config notes the swap. With `output_attentions` it returns weights
    under any kernel if all of its layers were swapped.

    Args:
        model: Any model whose attention an adapter knows (`models/adapters`).
        layer: `"standard"`, `"small_key"`, `"identifiable"` or `"shared_value"`.
        d_key: Size of queries and keys, per head. None: with `preserve` the model's own, half of it for `small_key`;
            else the preset's.
        d_value: Size of values, per head. None: with `preserve` the model's own for concatenated heads and `d_model`
            for others; else the preset's.
        num_value_heads: Number of value maps. None: the preset's.
        merge_heads: "concat", "sum" or "mean". None: the preset's.
        layers: Numbers of the layers to swap, from 0. None: all.
        preserve: Start from what the layers have learnt, instead of afresh.
        calibration: A batch for the model, by which `preserve` weighs what smaller keys must keep.

    Raises:
        ValueError: If the model holds nothing that is known, or not as many layers, or the sizes cannot preserve what
            it does. Nothing is changed then.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> config = BertConfig(hidden_size=96, num_attention_heads=4, num_hidden_layers=2)
        >>> model = BertForSequenceClassification(config)
        >>> print(swap_encoder_layers(model, "identifiable"))
        2 layers swapped: heads added, d_key 24, d_value 96, 4 value maps; the function is kept exactly
    """
    if layer not in SIZES:
        raise ValueError(f"layer is {layer!r}: choose one of {', '.join(SIZES)}.")
    modules = attention_modules(model)
    numbers = _checked(layers, len(modules))
    given = AttentionSizes(d_key, d_value, num_value_heads, merge_heads)  # pyright: ignore[reportArgumentType]
    planned = {number: _plan(modules[number], layer, given, preserve) for number in numbers}
    records = _calibrate(model, numbers, calibration) if preserve and calibration is not None else {}
    errors, distances = [], []
    for number, (own, attention) in planned.items():
        record = records.get(number)
        if preserve:
            errors.append(preserve_function(own, attention, record))
        if record:
            distances.append(_total_variation(record, attention))
        attention.to(own.query.weight).train(modules[number].training)
        replace(modules[number], attention, model)
    note_swap(model, [modules[number] for number in numbers])
    sizes = tuple(AttentionSizes.of(attention) for _, attention in planned.values())
    measured = [torch.stack(found) if found else None for found in (errors, distances)]
    return SwapReport(tuple(numbers), sizes, preserve, *measured)


def _checked(layers: Iterable[int] | None, number: int) -> list[int]:
    numbers = list(range(number)) if layers is None else sorted(set(layers))
    if missing := [layer for layer in numbers if not 0 <= layer < number]:
        raise ValueError(f"There is no layer {missing[0]}: the model has layers 0 to {number - 1}.")
    return numbers


def _plan(module: nn.Module, layer: str, given: AttentionSizes, preserve: bool) -> tuple[Heads, MultiHeadAttention]:
    """The heads of `module`, and the attention for them, freshly initialised, in float64 on the CPU."""
    own = heads_of(module)
    assert own is not None  # attention_modules found it
    sizes = _own_sizes(own, layer, given.merge_heads) if preserve else SIZES[layer](own.d_model, own.num_heads)
    chosen = {name: value for name, value in given._asdict().items() if value is not None}
    for name, value in chosen.items():
        if name != "merge_heads" and value < 1:
            raise ValueError(f"{name} is {value}: it must be at least 1.")
    with torch.device("cpu"):
        attention = new_attention(own, sizes._replace(**chosen)).double()
    if own.rotary and attention.d_key != own.d_key:
        raise ValueError(f"Positions turn this model's keys of size {own.d_key}: d_key cannot be {attention.d_key}.")
    if preserve:
        check_preservable(own, attention)
    return own, attention


def _own_sizes(own: Heads, layer: str, merge_heads: str | None) -> AttentionSizes:
    """A preset's merge with the sizes that preserve what the heads `own` do."""
    preset = SIZES[layer](2 * own.num_heads, own.num_heads)  # whose sizes are not asked for
    merge_heads = merge_heads or preset.merge_heads
    d_value = own.d_value if merge_heads == "concat" else own.d_model
    d_key = own.d_key // 2 if layer == "small_key" else own.d_key
    return AttentionSizes(d_key, d_value, preset.num_value_heads, merge_heads)


def _calibrate(model: nn.Module, numbers: list[int], batch: Mapping[str, Any] | Tensor) -> dict[int, HeadRecord]:
    """What each layer sees of a batch, without dropout."""
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        with torch.no_grad(), record_heads(model, numbers) as records:
            model(**batch) if isinstance(batch, Mapping) else model(batch)
    finally:
        for module in training:
            module.training = True
    return {record.layer: record for record in records}


def _total_variation(record: HeadRecord, attention: MultiHeadAttention) -> Tensor:
    """The mean over kept rows of half the absolute difference of old and new weights, *(head,)*."""
    new = heads_of(attention)
    assert new is not None
    difference = record.weights - HeadRecord.of(record.layer, new, record.call).weights
    distance = difference.abs().sum(-1).transpose(1, 2) / 2  # (batch, query, head)
    return (distance.flatten(0, 1) if record.keep is None else distance[record.keep]).mean(0).cpu()


def _describe(sizes: AttentionSizes) -> str:
    verb = {"concat": "concatenated", "sum": "added", "mean": "averaged"}[sizes.merge_heads]
    return f"heads {verb}, d_key {sizes.d_key}, d_value {sizes.d_value}, {sizes.num_value_heads} value maps"
