"""Several processes that do one run together, on several devices or machines."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy

from .errors import UserError

PLACE = ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # of a process, in its environment


@contextmanager
def together(trainer: L.Trainer) -> Iterator[Strategy]:
    """Start the other processes of a trainer, unless something else starts them, and connect all of them.

    Lightning starts a process by running `sys.argv` again, so every process comes to this place by itself. Trainers
    that are made within the context belong to the same processes. In the end the first process waits for the others,
    and its environment is as it was, so that another run can follow. Gives the trainer's strategy, by which they talk.

    Raises:
        UserError: If the strategy may split the weights: they are measured and saved in one process.
    """
    if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
        kind = type(trainer.strategy).__name__
        raise UserError(
            f"trainer.strategy is {kind}, which may split the weights: use trainer=ddp, which keeps them whole."
        )
    started_by_us = "LOCAL_RANK" not in os.environ
    launcher: Any = trainer.strategy.launcher
    if launcher is None:
        yield trainer.strategy
        return
    try:
        launcher.launch(trainer.strategy.setup_environment, trainer=trainer)
        yield trainer.strategy
    except BaseException:
        launcher.kill(signal.SIGKILL)
        raise
    finally:
        for process in launcher.procs:
            process.wait()
        if started_by_us:
            torch.distributed.destroy_process_group()
            for name in PLACE:
                os.environ.pop(name, None)


def first_decides(processes: Strategy, decide: Callable[[], Any]) -> Any:
    """What `decide` gives in the first process, in all of them."""
    return processes.broadcast(decide() if processes.is_global_zero else None)


def check_same(processes: Strategy, **facts: Any) -> None:
    """See that every process has the facts of the first.

    Raises:
        UserError: If one has not.
    """
    firsts = first_decides(processes, lambda: facts)
    if different := [name for name, fact in facts.items() if fact != firsts[name]]:
        process, name = torch.distributed.get_rank(), different[0]
        raise UserError(
            f"Process {process} has another {name} than the first, {facts[name]} instead of {firsts[name]}: give every "
            "process the same files."
        )


def gathered(part: Any) -> list[Any]:
    """The parts of all processes."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [part]
    parts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, part)
    return parts
