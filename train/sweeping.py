"""Sweeps: a run for each point of a grid. Hydra lays the grid out and launches it; a sweep that was stopped goes on."""

import hashlib
import json
import shlex
import shutil
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from .composing import compose_config, hydra_here, override
from .disk import lock
from .errors import TrainingError, UserError
from .loop import run
from .resuming import StoppedRun, stopped_run
from .run_folder import new_folder, write_json
from .sweep_folder import Sweep, is_sweep, read_sweep

HYDRA = ("hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null", "hydra.sweep.subdir=.")
IMMATERIAL = ("quiet=", "hydra/launcher=", "hydra.launcher.")  # may change when a sweep goes on


def run_sweep(overrides: Sequence[str], own: Sequence[str]) -> Sweep:
    """Run every point that `overrides` describe, and record what became of it.

    The newest sweep of the same name and description that is not finished, and that no live process holds, goes on:
    points that are done are skipped, those that failed are tried again, and one that was stopped goes on from its last
    checkpoint. Otherwise a new one begins, in `<runs>/<name>/sweep-<time>`.

    Args:
        overrides: As people type them, with all that Hydra's sweeper understands, as `layer=standard,identifiable`.
        own: Overrides of every point, which take no part in that: a comma is a comma.

    Raises:
        UserError: If a point names what is not there; nothing has run then.
        KeyboardInterrupt: With a sentence on how to go on.
    """
    cfg = _compose(overrides)
    with _claim(Path(cfg.runs) / cfg.name, _description(cfg, overrides, own)) as folder:
        done = len(read_sweep(folder).runs)
        said = f"Sweep folder: {folder}" + (f", goes on after {done} points" if done else "")
        Console(quiet=cfg.quiet).print(said, markup=False, highlight=False, soft_wrap=True)
        point = partial(run_point, folder=str(folder), own=list(own), name=f"{cfg.name}/{folder.name}")
        try:
            with hydra_here() as hydra:
                hydra.multirun("train", point, [*overrides, *HYDRA, override("hydra.sweep.dir", str(folder))])
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                "Interrupted. The same command goes on, skipping the points that are done."
            ) from None
        sweep = read_sweep(folder)
        write_json(folder / "sweep.json", _facts(folder) | {"finished": not sweep.errors})
    return sweep


def run_point(_: DictConfig, *, folder: str, own: list[str], name: str) -> None:
    """Run one point, unless it is done, and record its run's folder, or why there is none."""
    job = HydraConfig.get()
    overrides: Any = OmegaConf.to_container(job.overrides.task)
    record = Path(folder) / "points" / f"{job.job.num:04}.json"
    if record.exists() and "run" in json.loads(record.read_text(encoding="utf-8")):
        return
    record.parent.mkdir(exist_ok=True)
    try:
        outcome = {"run": _run([*overrides, *own], name, Path(folder)).name}
    except (UserError, TrainingError) as error:
        outcome = {"error": str(error)}
    except Exception as error:
        traceback.print_exc()
        outcome = {"error": f"{type(error).__name__}: {error}"}
    write_json(record, {"overrides": overrides, **outcome})


def _run(overrides: list[str], name: str, folder: Path) -> Path:
    """The folder of a run, while which the command line is the point's: Lightning starts more processes by it."""
    typed, place = sys.argv, override("name", name)
    command = shlex.join(["identiformer", "train", *(text for text in overrides if not text.startswith(IMMATERIAL))])
    stopped = _stopped(folder, command)
    sys.argv = [typed[0], "train", *(["--resume", str(stopped.folder)] if stopped else [*overrides, place])]
    try:
        if stopped:
            return run(stopped.cfg, stopped).folder
        return run(compose_config([*overrides, place, override("command", command)])).folder
    finally:
        sys.argv = typed


def _stopped(folder: Path, command: str) -> StoppedRun | None:
    """A run of the point of this command that was stopped."""
    for path in folder.glob("*/config.yaml"):
        if not (path.parent / "summary.json").exists() and OmegaConf.load(path).command == command:
            return stopped_run(path.parent)
    return None


def _compose(overrides: Sequence[str]) -> DictConfig:
    with hydra_here() as hydra:
        for parsed in OverridesParser.create().parse_overrides(list(overrides)):
            if parsed.key_or_group in ("name", "runs") and parsed.is_sweep_override():
                raise UserError(f"{parsed.key_or_group} cannot have several values: a sweep has one folder.")
        return hydra.compose_config("train", list(overrides), run_mode=RunMode.MULTIRUN)


def _description(cfg: DictConfig, overrides: Sequence[str], own: Sequence[str]) -> str:
    """Equal for sweeps of the same points: a hash of what was typed, of the config, and of the axes in it."""
    typed = [text for text in [*overrides, *own] if not text.startswith(IMMATERIAL)]
    settings = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key not in ("hydra", "quiet")])
    parts = [*typed, OmegaConf.to_yaml(settings), OmegaConf.to_yaml(cfg.hydra.sweeper)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


@contextmanager
def _claim(parent: Path, description: str) -> Iterator[Path]:
    """The folder of the newest unfinished sweep of this description that nobody holds, or of a new one; ours now."""
    for folder in sorted(parent.glob("sweep-*"), reverse=True):
        if _is_open(folder, description) and (held := lock(folder)):
            if _is_open(folder, description):  # still, now that nobody else can finish it
                break
            held.close()
    else:
        folder = new_folder(parent, "sweep")
        held = lock(folder)
        write_json(folder / "sweep.json", {"description": description, "finished": False})
    try:
        yield folder
    except UserError:
        if not (folder / "points").exists():
            shutil.rmtree(folder)
        raise
    finally:
        if held:
            held.close()


def _is_open(folder: Path, description: str) -> bool:
    return is_sweep(folder) and _facts(folder) == {"description": description, "finished": False}


def _facts(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
