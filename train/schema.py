"""Types of the settings that are ours; a value of another type is refused before anything is read. Dotted keys."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING


@dataclass
class DataSettings:
    """The group `data`."""

    embedded: str | None = MISSING
    folder: str | None = MISSING
    hub: dict[str, Any] | None = MISSING
    train: str | None = MISSING
    validation: str | None = MISSING
    test: str | None = MISSING
    text: list[str] = MISSING
    label: str = MISSING
    encoding: str = MISSING
    separator: str | None = MISSING
    empty_texts: str = MISSING
    unknown_labels: str = MISSING
    split_seed: int = MISSING
    tokenizer: str = MISSING
    vocab_size: int = MISSING
    max_length: int = MISSING
    batch_size: int = MISSING
    workers: int = MISSING


@dataclass
class RunSettings:
    """The whole config; what libraries check themselves is left to them."""

    data: DataSettings = MISSING
    model: dict[str, Any] = MISSING
    optimizer: dict[str, Any] = MISSING
    scheduler: dict[str, Any] | None = MISSING
    trainer: dict[str, Any] = MISSING
    callbacks: dict[str, Any] = MISSING
    logger: dict[str, Any] = MISSING
    name: str = MISSING
    runs: str = MISSING
    seed: int = MISSING
    class_weight: str | None = MISSING
    one_batch: bool = MISSING
    quiet: bool = MISSING
    preset: str | None = MISSING
    command: str | None = MISSING


def dotted(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every entry of nested dictionaries, sections as well, by its dotted key."""
    for key, value in config.items():
        yield prefix + key, value
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{key}.")
