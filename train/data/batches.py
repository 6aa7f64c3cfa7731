"""Batches of texts of similar length, in an order that a seed and an epoch determine."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import DataLoader, Sampler
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

NO_LABEL = -100  # which PyTorch's losses leave out
SORTED_TOGETHER = 50  # batches' worth of shuffled texts that are sorted by length among themselves


class LengthBatchSampler(Sampler[list[int]]):
    """Batches of places of texts of similar length.

    Shuffled, texts are put in random order, sorted by length within blocks, cut into batches, and the batches put in
    random order; the random numbers come from (seed, epoch) alone. Not shuffled, texts are sorted by length.

    Several processes share the batches of one that has as many times the batch size: each has its part of every batch.
    Where there is no row for it, it has the batch's first row, which must not count; `idle` holds these batches.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int = 0,
        process: int = 0,
        processes: int = 1,
    ):
        self.lengths, self.batch_size, self.shuffle, self.seed = lengths, batch_size * processes, shuffle, seed
        self.process, self.processes = process, processes
        self.idle: set[int] = set()
        self.epoch = self.start = 0
        self.sampler = self  # where Lightning looks for set_epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of another epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        batches = self.batches()
        self.idle = {number for number, batch in enumerate(batches) if len(batch) <= self.process}
        parts = [batch[self.process :: self.processes] or batch[:1] for batch in batches]
        return iter(parts[self.start :])

    def batches(self) -> list[list[int]]:
        """The batches of all processes together."""
        generator = np.random.default_rng((self.seed, self.epoch))
        size, number = self.batch_size, len(self.lengths)
        places = generator.permutation(number) if self.shuffle else np.arange(number)
        block = size * SORTED_TOGETHER if self.shuffle else max(number, 1)
        blocks = [places[start : start + block] for start in range(0, number, block)]
        ordered = np.concatenate([part[np.argsort(self.lengths[part], kind="stable")] for part in blocks] or [places])
        batches = [ordered[start : start + size].tolist() for start in range(0, number, size)]
        if self.shuffle:
            generator.shuffle(batches)
        return batches


def batches_of(
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    batch_size: int,
    *,
    shuffle: bool = False,
    seed: int = 0,
    workers: int = 0,
    process: int = 0,
    processes: int = 1,
) -> "PositionedLoader":
    """A loader of tokenised rows, which know their `length` before they were cut, for one of several processes."""
    lengths = np.asarray(rows["length"], dtype=int).clip(max=tokenizer.model_max_length)
    place = {"process": process, "processes": processes}
    sampler = LengthBatchSampler(lengths, batch_size, shuffle=shuffle, seed=seed, **place)
    return PositionedLoader(rows.remove_columns("length"), sampler, tokenizer, workers)


class PositionedLoader(DataLoader):
    """A loader that knows how many batches of which epoch it has given, so that training can go on in mid-epoch.

    A row that is there only because its process would have none has the label `NO_LABEL` and the number 0.
    """

    def __init__(self, dataset: Any, sampler: LengthBatchSampler, tokenizer: PreTrainedTokenizerBase, workers: int = 0):
        self.sampler_of_batches = sampler
        self.position = 0
        self.order = torch.Generator()
        super().__init__(
            dataset,
            batch_sampler=sampler,
            collate_fn=DataCollatorWithPadding(tokenizer),
            num_workers=workers,
            generator=self.order,
        )

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        sampler = self.sampler_of_batches
        self.order.manual_seed(sampler.seed + sampler.epoch)
        self.position = sampler.start
        for batch in super().__iter__():
            if self.position in sampler.idle:
                batch["labels"].fill_(NO_LABEL)
                batch["row"].zero_()
            self.position += 1
            yield batch
        sampler.start = self.position = 0

    def row_numbers(self) -> list[int]:
        """The rows of this epoch in the order in which all processes together give them."""
        rows = self.dataset["row"][:]
        return [rows[place] for batch in self.sampler_of_batches.batches() for place in batch]

    def state_dict(self) -> dict[str, int]:
        """Where the loader stands."""
        return {"epoch": self.sampler_of_batches.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there, in the next iteration."""
        self.sampler_of_batches.set_epoch(state["epoch"])
        self.sampler_of_batches.start = self.position = state["position"]
