"""Runs that were stopped: how a run keeps what going on takes, and how it is found again."""

import random
import shlex
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor
from yaml import YAMLError

from .data.prepare import TextData
from .data.tokenizer import vocabulary_hash
from .disk import full_disk, lock, whole_file
from .errors import TrainingError, UserError
from .processes import gathered
from .schema import RunSettings
from .sweep_folder import is_sweep

KEY = "identiformer"  # of ours in a checkpoint
LOGS = ("metrics.csv", "identifiability.jsonl")
LAST = "last.ckpt"


class StoppedRun(NamedTuple):
    """A run that is to go on.

    Attributes:
        folder: Its folder.
        cfg: Its config.
        checkpoint: The newest one; None: it was stopped before the first.
        saved: What `RunKeeper` put into it.
    """

    folder: Path
    cfg: DictConfig
    checkpoint: Path | None
    saved: dict[str, Any]

    def __str__(self) -> str:
        if self.checkpoint is None:
            return f"Run folder: {self.folder}, starts anew, since it was stopped before its first checkpoint"
        return f"Run folder: {self.folder}, goes on after step {self.saved['step']}"


def stopped_run(folder: Path) -> StoppedRun:
    """What is left of a run that was stopped.

    Raises:
        UserError: If this is no run's folder, the run is finished, or a checkpoint cannot be read.
    """
    if is_sweep(folder):
        raise UserError(f"{folder} is a sweep: the command that began it goes on with it.")
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is not the folder of a run: there is no config.yaml in it.")
    if (folder / "summary.json").exists():
        raise UserError(f"{folder} is finished: there is nothing to go on with. For more epochs train anew.")
    try:
        cfg: Any = OmegaConf.merge(OmegaConf.structured(RunSettings), OmegaConf.load(folder / "config.yaml"))
    except (OmegaConfBaseException, YAMLError, ValueError) as error:
        raise UserError(f"{folder / 'config.yaml'} cannot be read: {str(error).splitlines()[0]}") from None
    checkpoint, saved = _newest(folder / "checkpoints")
    return StoppedRun(folder, cfg, checkpoint, saved)


def _newest(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    """The checkpoint after the most steps, the last written among equals, and what `RunKeeper` put into it.

    One that was saved while gradients waited for another batch does not hold these: nothing can go on from it.
    """
    found: list[tuple[int, int, Path, dict[str, Any]]] = []
    for path in folder.glob("*.ckpt"):
        try:
            saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)[KEY]
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UserError(f"{path} is not a checkpoint of this program; take it away ({reason})") from None
        if not saved["gathering"]:
            found.append((saved["step"], path.stat().st_mtime_ns, path, saved))
    return max(found)[2:] if found else (None, {})


@contextmanager
def claiming(folder: Path) -> Iterator[None]:
    """Keep a run's folder from every other process but those that train it together.

    Raises:
        UserError: If another process has it.
    """
    if rank_zero_only.rank:
        yield
        return
    (folder / "checkpoints").mkdir(exist_ok=True)
    held = lock(folder / "checkpoints")
    if held is None:
        raise UserError(f"{folder} is being trained by another process: wait for it, or end it first.")
    with held:
        yield


@rank_zero_only
def rewind(stopped: StoppedRun) -> None:
    """Take away what was logged after the checkpoint, and files that were being written."""
    for part in [*stopped.folder.glob(".*.part"), *stopped.folder.glob("checkpoints/.*.part")]:
        part.unlink()
    for name in LOGS:
        _cut(stopped.folder / name, stopped.saved.get("lines", {}).get(name, 0))


def _cut(path: Path, lines: int) -> None:
    """Keep the first lines of a file; of none, no file."""
    if not lines:
        path.unlink(missing_ok=True)
    elif _count(path) > lines:
        with path.open("rb") as file, whole_file(path) as part:
            part.write_bytes(b"".join(file.readline() for _ in range(lines)))


def _count(path: Path) -> int:
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return sum(1 for _ in file)


def facts_of(cfg: DictConfig, data: TextData) -> dict[str, str]:
    """What must be the same when a run goes on, by the words that a person is told if it is not."""
    config = OmegaConf.to_yaml(OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "quiet"]))
    return {"config.yaml": config, "the data": data.content_hash, "the vocabulary": vocabulary_hash(data.tokenizer)}


def check_facts(stopped: StoppedRun, facts: dict[str, str]) -> None:
    """Refuse to go on with what is not the same.

    Raises:
        UserError: Naming what has changed.
    """
    for name, value in stopped.saved.get("facts", facts).items():
        if value != facts[name]:
            raise UserError(
                f"{stopped.folder} cannot go on: {name} changed since its checkpoint of step {stopped.saved['step']}. "
                "Put back what it was, or take the folder away and train anew."
            )


class RunKeeper(L.Callback):
    """Lets a run be stopped and go on as if it never was, and lets nothing be saved that is not finite.

    Into every checkpoint go the random states, the lines of the logs and the seconds of training; where it is saved
    between two batches or in a validation, Lightning's counters are set to what makes it go on there.

    Args:
        folder: The run's folder.
        facts: What must be the same when the run goes on, see `facts_of`.
        stopped: The run that goes on.
    """

    def __init__(self, folder: Path, facts: dict[str, str], stopped: StoppedRun | None = None):
        self.folder, self.facts, self.interrupted = folder, facts, False
        self._before = stopped.saved.get("seconds", 0.0) if stopped else 0.0
        self._started = time.perf_counter()
        self._saved_step = -1
        self._loaded: dict[str, Any] = {}

    @property
    def seconds(self) -> float:
        """Of training, with those before the run was stopped."""
        return self._before + time.perf_counter() - self._started

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Start the clock. Let the first interruption wait until a checkpoint can be saved; the second acts at once."""
        self._started = time.perf_counter()
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler) or threading.current_thread() is not threading.main_thread():
            yield
            return

        def wait(number: int, frame: Any) -> None:
            if self.interrupted:
                handler(number, frame)
            self.interrupted = True

        signal.signal(signal.SIGINT, wait)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, handler)
        if self.interrupted:  # in the last moments
            raise KeyboardInterrupt

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Take what was saved; let paths lead to where the folder is now."""
        for state in checkpoint["callbacks"].values():
            if "best_k_models" in state:
                _move(state, self.folder / "checkpoints")
        if trainer.state.fn != TrainerFn.FITTING:
            return
        self._loaded = checkpoint[KEY] | checkpoint["loops"]["fit_loop"]["state_dict"]
        if (before := len(self._loaded["random"])) != trainer.world_size:
            raise UserError(
                f"{self.folder} was trained by {before} processes and cannot go on with {trainer.world_size}."
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Go on with the random numbers and the batches, and with the decision to stop if it was made."""
        if self._loaded:
            _set_random_state(self._loaded["random"][trainer.global_rank])
            trainer.should_stop = self._loaded["should_stop"]
            (state,) = self._loaded["combined_loader"]  # which Lightning forgets once it has counted the steps
            trainer.train_dataloader.load_state_dict(state)  # pyright: ignore[reportOptionalMemberAccess]

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Between two batches, and before other callbacks log: save if it is time, stop if asked to."""
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, LastCheckpoint) and between_steps(trainer, batch_idx):
                callback.save_after_steps(trainer)
        if trainer.strategy.reduce_boolean_decision(self.interrupted, all=False):
            if self._saved_step != trainer.global_step:
                if not between_steps(trainer, batch_idx):
                    return
                trainer.save_checkpoint(self.folder / "checkpoints" / LAST)
            raise KeyboardInterrupt

    def on_validation_batch_end(self, trainer: L.Trainer, *args: Any, **options: Any) -> None:
        """Stop here if asked to; a process among others waits for the next batch of training."""
        fitting = trainer.state.fn == TrainerFn.FITTING
        if self.interrupted and fitting and trainer.world_size == 1 and not trainer.fit_loop._should_accumulate():
            trainer.save_checkpoint(self.folder / "checkpoints" / LAST)
            raise KeyboardInterrupt

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        """Raise if the loss is not finite, before it reaches the weights."""
        if not trainer.strategy.reduce_boolean_decision(bool(loss.isfinite())):
            self._diverge(trainer, f"the loss is {loss.item():g}")

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Raise if training made a weight that is not finite."""
        if trainer.state.fn == TrainerFn.FITTING:
            self._check_weights(trainer, pl_module)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Put in what going on takes, unless a weight is not finite."""
        self._check_weights(trainer, pl_module)
        for logger in trainer.loggers:
            logger.save()
        counters = checkpoint["loops"]["fit_loop"]
        _set_counters(counters)
        batches = counters["epoch_loop.batch_progress"]
        waiting = batches["current"]["ready"] % trainer.accumulate_grad_batches
        self._saved_step = trainer.global_step
        checkpoint[KEY] = {
            "step": trainer.global_step,
            "gathering": bool(waiting) and not batches["is_last_batch"],
            "facts": self.facts,
            "seconds": self.seconds,
            "lines": {name: _count(self.folder / name) for name in LOGS},
            "should_stop": trainer.should_stop,
            "random": _random_states(),
        }

    def _check_weights(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        finite = all(bool(parameter.isfinite().all()) for parameter in module.parameters())
        if not trainer.strategy.reduce_boolean_decision(finite):
            self._diverge(trainer, "a weight is not finite")

    def _diverge(self, trainer: L.Trainer, fault: str) -> None:
        rate = max(group["lr"] for group in trainer.optimizers[0].param_groups)
        kept = self.folder / "checkpoints" / LAST
        where = f"the last good checkpoint is {kept}" if kept.exists() else "there was no checkpoint yet"
        raise TrainingError(
            f"Training diverged at step {trainer.global_step} of epoch {trainer.current_epoch}: {fault}, at learning "
            f"rate {rate:.3g}; {where}. Try a smaller optimizer.lr, a longer scheduler.warmup or a smaller "
            "trainer.gradient_clip_val."
        )


class LastCheckpoint(ModelCheckpoint):
    """Saves what a run goes on from: after every epoch, every validation and, if asked to, every so many steps.

    It does so where going on is exact: when all that belongs to a step was done and logged.
    """

    def on_train_batch_end(self, *args: Any, **options: Any) -> None:
        """Wait for the next batch."""

    def save_after_steps(self, trainer: L.Trainer) -> None:
        """Save if the number of steps is one of those."""
        if self._every_n_train_steps and trainer.global_step % self._every_n_train_steps == 0:
            self._save(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save, unless the epoch ends here or gradients wait for another batch."""
        if not self._should_save_on_train_epoch_end(trainer) and not trainer.fit_loop._should_accumulate():
            self._save(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save."""
        self._save(trainer)

    def _save(self, trainer: L.Trainer) -> None:
        if not self._should_skip_saving_checkpoint(trainer):
            self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))


def between_steps(trainer: L.Trainer, batch_idx: int) -> bool:
    """Whether, at the start of a batch, steps of this epoch are done and no gradient waits for another batch."""
    return batch_idx > 0 and batch_idx % trainer.accumulate_grad_batches == 0


def _set_counters(fit: dict[str, Any]) -> None:
    """Make Lightning go on exactly where a checkpoint is saved."""
    batches, validation = fit["epoch_loop.batch_progress"], fit["epoch_loop.val_loop.batch_progress"]
    if batches["current"]["ready"] > batches["current"]["started"]:
        # As at the end of the batch before, from where Lightning counts that one itself, and validates no more.
        for counts in (batches["total"], batches["current"]):
            counts["ready"] -= 1
            counts["completed"] -= 1
        batches["is_last_batch"] = False
        fit["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1
        for loader in fit["state_dict"]["combined_loader"]:
            loader["position"] -= 1
    elif validation["current"]["processed"] > validation["current"]["completed"]:
        # As in the first batch of the validation, which Lightning then does as a whole.
        validation["total"] = {"ready": 1, "started": 1, "processed": 0, "completed": 0}
        validation["current"] = dict.fromkeys(validation["current"], 0)
        validation["is_last_batch"] = False


def _move(state: dict[str, Any], folder: Path) -> None:
    """Let the paths of a ModelCheckpoint's state lead into `folder`."""
    state["dirpath"] = str(folder)
    for name in ("best_model_path", "kth_best_model_path", "last_model_path"):
        state[name] = _moved(state[name], folder)
    state["best_k_models"] = {_moved(path, folder): score for path, score in state["best_k_models"].items()}


def _moved(path: str, folder: Path) -> str:
    return str(folder / Path(path).name) if path else path


def _random_states() -> list[dict[str, Any]]:
    """States of all random numbers, of each process, as types that load without unpickling."""
    name, keys, *rest = np.random.get_state(legacy=True)
    state = {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": (name, [int(key) for key in keys], *rest),
        "python": random.getstate(),
    }
    return gathered(state)


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    random.setstate(state["python"])


@contextmanager
def telling(folder: Path) -> Iterator[None]:
    """Say in one sentence how to go on with a run that is interrupted, or that a full disk stops."""
    command = f"identiformer train --resume {shlex.quote(str(folder))}"
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Interrupted. To go on: {command}") from None
    except Exception as error:
        if full := full_disk(error):
            file = getattr(full, "filename", None) or f"a file in {folder}"
            then = f"go on: {command}" if (folder / "config.yaml").exists() else "train again."
            raise TrainingError(f"The disk is full: {file} could not be written. Make room, then {then}") from error
        raise
