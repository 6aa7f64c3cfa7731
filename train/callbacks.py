"""Lightning callbacks: the identifiability monitor and the record of test predictions."""

import json
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from ..models import HeadRecord, record_heads
from .disk import full_disk, naming
from .errors import MonitorWarning
from .metrics.head_measures import ROWS, HeadMeasures, measure_heads
from .metrics.own_shares import OwnShares
from .processes import gathered

ATTRIBUTED = 8  # texts of a validation
NEIGHBOURS = 4  # texts that follow each other in the sample


class IdentifiabilityMonitor(L.Callback):
    """Measures identifiability and effective attention in every validation and test, of any LightningModule.

    A fixed, seeded sample of texts is measured: null space, margin and effective attention of every head, and key
    ambiguity and slack of a few of its rows, in float64, outside autograd and autocast. Logged are
    `val/identifiability/nullity` and the others of `identiformer.train.metrics.MEASURES`, as means over all
    (text, head) pairs (the margin's median), and the same per layer, `val/layer_0/identifiability/nullity`. While
    fitting, one line per layer, head and length bucket goes to `identifiability.jsonl`. What cannot be measured is
    counted and reported in one `MonitorWarning`.

    Args:
        texts: How many texts of the loader are measured in a validation or test of its own; None: all.
        fit_texts: How many at most in a validation while fitting, so that it costs little, spread evenly over the
            loader; None: as many as `texts`.
        seed: Chooses them, with their number and the loader's, and the rows.
        folder: Where `identifiability.jsonl` is written. None: the logger's folder.
        rows: How many rows of a text are measured where a measure belongs to a row; the first token's is always one of
            them, the others are chosen by the text's length. None: all.
        attribution: Whether to log `val/attribution/own_share` too, how much of a hidden token its own input
            contributes, over all tokens and layers of a few texts, and by layer. For a module whose `model` takes
            `input_ids` and `attention_mask` of its batches.

    Raises:
        ValueError: If `rows` is less than 1.
    """

    def __init__(
        self,
        texts: int | None = 256,
        seed: int = 0,
        folder: str | None = None,
        rows: int | None = ROWS,
        attribution: bool = False,
        fit_texts: int | None = 16,
    ):
        if rows is not None and rows < 1:
            raise ValueError(f"rows is {rows}: at least 1 row of a text has to be measured.")
        self.texts, self.fit_texts, self.seed, self.folder, self.rows = texts, fit_texts, seed, folder, rows
        self.measures, self.attribution, self.shares = HeadMeasures(), attribution, OwnShares()
        self._hooks = ExitStack()
        self._records: list[HeadRecord] = []
        self._places: dict[int, int] | None = None  # in the loader's order, of rows by their numbers
        self._chosen: set[int] | None = None
        self._attributed: set[int] = set()
        self._inputs: list[dict[str, Tensor]] = []
        self._seen = self._failed = 0
        self._warned = False

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin to record."""
        self._start(trainer, pl_module, trainer.val_dataloaders)

    def on_test_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin to record."""
        self._start(trainer, pl_module, trainer.test_dataloaders)

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, *args: Any
    ) -> None:
        """Measure the chosen texts of the batch."""
        self._measure_batch(batch)

    def on_test_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, *args: Any
    ) -> None:
        """Measure the chosen texts of the batch."""
        self._measure_batch(batch)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log what was measured."""
        self._finish(trainer, pl_module, "val")

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log what was measured."""
        self._finish(trainer, pl_module, "test")

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Take the hooks off the model."""
        self._hooks.close()

    def _start(self, trainer: L.Trainer, pl_module: L.LightningModule, loader: Any) -> None:
        self._hooks.close()
        self.measures.reset()
        self.shares.reset()
        self._seen = self._failed = 0
        self._records, self._inputs, self._attributed = [], [], set()
        if trainer.sanity_checking:
            return
        with self._never_fail():
            if trainer.world_size > 1:
                self.measures.to(pl_module.device)
                self.shares.to(pl_module.device)
            self._chosen = self._choose(loader, trainer.state.fn == "fit")
            self._places = self._place_rows(loader)
            self._records = self._hooks.enter_context(record_heads(pl_module))
            if self.attribution:
                self._attributed = self._spread(loader)

    def _choose(self, loader: Any, fitting: bool) -> set[int] | None:
        """Positions of the measured texts in the order of the loader; None: all."""
        limits = [self.texts, self.fit_texts if fitting else None]
        wanted = min((limit for limit in limits if limit is not None), default=None)
        try:
            number = len(loader.dataset)
        except (AttributeError, TypeError):
            return None if wanted is None else set(range(wanted))
        if wanted is None or wanted >= number:
            return None
        generator = torch.Generator().manual_seed(self.seed)
        chosen = spread(number, wanted, generator) if fitting else torch.randperm(number, generator=generator)[:wanted]
        return set(chosen.tolist())

    def _spread(self, loader: Any) -> set[int]:
        """Positions of the texts that are attributed, evenly over those that are measured."""
        places = sorted(range(len(loader.dataset)) if self._chosen is None else self._chosen)
        step = max(1, len(places) // ATTRIBUTED)
        return set(places[step // 2 :: step][:ATTRIBUTED])

    def _place_rows(self, loader: Any) -> dict[int, int] | None:
        """Positions of the measured rows by their numbers, if a loader tells these: a process may not have all rows."""
        if not hasattr(loader, "row_numbers"):
            return None
        rows = enumerate(loader.row_numbers())
        return {row: place for place, row in rows if self._chosen is None or place in self._chosen}

    def _positions(self, batch: Any, size: int) -> list[int | None]:
        """Where the texts of a batch stand in the order of the loader; None: not measured."""
        if self._places is not None:
            return [self._places.get(row) for row in batch["row"].tolist()]
        places = range(self._seen, self._seen + size)
        self._seen += size
        return [place if self._chosen is None or place in self._chosen else None for place in places]

    def _measure_batch(self, batch: Any) -> None:
        if not self._records:
            return
        places = self._positions(batch, len(self._records[0].hidden))
        texts = [text for text, place in enumerate(places) if place is not None]
        attributed = [text for text in texts if places[text] in self._attributed]
        if attributed:  # at the end, when the hooks are off
            with self._never_fail():
                self._inputs.append({name: batch[name][attributed] for name in ("input_ids", "attention_mask")})
        try:
            with self._never_fail():
                for record in self._records if texts else []:
                    self._measure(record.select(torch.tensor(texts, device=record.hidden.device)))
        finally:
            self._records.clear()

    def _measure(self, record: HeadRecord) -> None:
        try:
            with torch.no_grad(), torch.autocast(record.hidden.device.type, enabled=False):
                measures = measure_heads(record, self.rows, self.seed)
                self.measures.update(record.layer, _lengths(record), measures)
        except ValueError:
            if len(record.hidden) == 1:
                self._failed += 1
                return
            for text in range(len(record.hidden)):
                self._measure(record.select(torch.tensor([text], device=record.hidden.device)))

    def _finish(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._hooks.close()
        if trainer.sanity_checking:
            return
        with self._never_fail():
            self.measures.sync()  # over processes, until the next validation
            pl_module.log_dict(
                {f"{stage}/{name}": value for name, value in self.measures.summary().items()}, sync_dist=True
            )
            if trainer.state.fn == "fit":
                self._write(trainer)
        with self._never_fail():
            for inputs in self._inputs:
                self.shares.update(pl_module.model, inputs, self.seed)  # pyright: ignore[reportArgumentType]
        with self._never_fail():
            shares = self.shares.compute() if self.attribution else {}
            pl_module.log_dict({f"{stage}/{name}": value for name, value in shares.items()}, sync_dist=True)
        if self._failed:
            self._warn(f"{self._failed} (text, layer) pairs hold numbers that are not finite and were not measured.")

    def _write(self, trainer: L.Trainer) -> None:
        """Append a line per layer, head and length bucket."""
        folder = self.folder or trainer.log_dir  # for which all processes have to ask
        if folder is None or not trainer.is_global_zero:
            return
        Path(folder).mkdir(parents=True, exist_ok=True)
        path = Path(folder) / "identifiability.jsonl"
        with naming(path), path.open("a", encoding="utf-8") as file:
            for group in self.measures.groups():
                line = {"epoch": trainer.current_epoch, "step": trainer.global_step, **group._asdict()}
                file.write(json.dumps(line | line.pop("measures")) + "\n")

    @contextmanager
    def _never_fail(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if full_disk(error):
                raise
            self._warn(f"identifiability was not measured: {type(error).__name__}: {error}")

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(MonitorWarning(message), stacklevel=3)


def spread(number: int, wanted: int, generator: torch.Generator) -> Tensor:
    """Places *(wanted,)* among a larger number: runs of neighbours, evenly spaced from a start by chance.

    Where texts are sorted by length, few calls then measure texts of every length.
    """
    places = torch.arange(wanted)
    first = places - places % NEIGHBOURS  # of each run
    last_run = wanted % NEIGHBOURS or NEIGHBOURS
    start = torch.rand(1, generator=generator) * (number - wanted) / max(wanted, 1) * last_run
    return first * number // max(wanted, 1) + places % NEIGHBOURS + start.long()


def _lengths(record: HeadRecord) -> Tensor:
    """Kept tokens of each text, *(texts,)*."""
    batch, tokens, _ = record.hidden.shape
    return torch.full((batch,), tokens) if record.keep is None else record.keep.sum(1).cpu()


class PredictionRecorder(L.Callback):
    """Keeps the row numbers and class probabilities of the test texts."""

    def __init__(self):
        self.rows: list[Tensor] = []
        self.probabilities: list[Tensor] = []

    def on_test_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, *args: Any
    ) -> None:
        """Take a batch's predictions to the CPU."""
        self.record(batch["row"], outputs)

    def record(self, rows: Tensor, probabilities: Tensor) -> None:
        """Keep row numbers *(batch,)* and probabilities *(batch, classes)*."""
        self.rows.append(rows.cpu())
        self.probabilities.append(probabilities.cpu())

    def gather(self) -> tuple[Tensor, Tensor]:
        """Row numbers *(rows,)*, rising, and probabilities *(rows, classes)*, of all processes."""
        parts = gathered((torch.cat(self.rows), torch.cat(self.probabilities)))
        rows, probabilities = (torch.cat(part) for part in zip(*parts, strict=True))
        order = rows.argsort()[(rows == 0).sum() :]  # a 0 is the number of none
        return rows[order], probabilities[order]
