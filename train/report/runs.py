"""Finished runs, read from their folders, and groups of them that differ only by seed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import OmegaConf

from ..errors import UserError
from ..schema import dotted
from ..statistics import accuracy_interval
from ..sweep_folder import is_sweep, read_sweep

APART = ("seed.", "name.", "runs.", "command.", "quiet.", "logger.", "callbacks.board.")  # in which a group may differ
NO_FIGURES = ("seed", "format_version")


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: Where it is.
        summary: What its `summary.json` holds, and `test/accuracy_interval`, Wilson's at 95 %.
        settings: Its config by dotted keys, without what does not matter, and the hash of its data.
    """

    folder: Path
    summary: dict[str, Any]
    settings: dict[str, Any]

    @property
    def finished(self) -> float:
        """When, in seconds."""
        return (self.folder / "summary.json").stat().st_mtime

    @property
    def figures(self) -> dict[str, float]:
        """All numbers of the summary."""
        numbers = {key: value for key, value in self.summary.items() if isinstance(value, int | float)}
        return {key: value for key, value in numbers.items() if key not in NO_FIGURES}

    @cached_property
    def predictions(self) -> pd.DataFrame | None:
        """`row`, `label` and `predicted` of each test text; None without a test split."""
        path = self.folder / "predictions.parquet"
        return pd.read_parquet(path, columns=["row", "label", "predicted"]) if path.exists() else None


@dataclass(frozen=True)
class Group:
    """Runs that differ only by seed.

    Attributes:
        name: Their preset, and the settings that tell them from other groups of that preset.
        runs: In the order of their seeds.
    """

    name: str
    runs: list[Run]

    @property
    def preset(self) -> str:
        """Their layer."""
        return self.runs[0].summary["preset"]

    @property
    def seeds(self) -> list[int]:
        """Their seeds."""
        return [run.summary["seed"] for run in self.runs]

    @property
    def figures(self) -> pd.DataFrame:
        """For every figure that all runs have its `mean` and standard deviation `std` over them."""
        table = pd.DataFrame([run.figures for run in self.runs]).dropna(axis=1)
        return pd.DataFrame({"mean": table.mean(), "std": table.std()})

    @property
    def right(self) -> np.ndarray | None:
        """Whether each run classified each test text rightly, *(runs, texts)*; None without a test split."""
        tables = [run.predictions for run in self.runs]
        if any(table is None for table in tables):
            return None
        return np.stack([(table["predicted"] == table["label"]).to_numpy() for table in tables])  # pyright: ignore


def read_runs(paths: Sequence[str | Path]) -> list[Run]:
    """The finished runs in folders of runs and of sweeps, each once.

    Raises:
        UserError: If a folder is neither, or a sweep has no finished run.
    """
    folders = [folder for path in paths for folder in run_folders(Path(path))]
    return [_read(folder) for folder in {folder.resolve(): folder for folder in folders}.values()]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Groups in the order of their first runs. Of runs with the same seed the newest counts."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(run.settings, sort_keys=True), []).append(run)
    names = _names([group[0].settings for group in groups.values()])
    return [Group(name, _one_a_seed(group)) for name, group in zip(names, groups.values(), strict=True)]


def _one_a_seed(runs: list[Run]) -> list[Run]:
    newest = {run.summary["seed"]: run for run in sorted(runs, key=lambda run: run.finished)}
    return [newest[seed] for seed in sorted(newest)]


def run_folders(folder: Path) -> list[Path]:
    """The finished runs of a sweep; of anything else itself.

    Raises:
        UserError: If a sweep has no finished run.
    """
    if not is_sweep(folder):
        return [folder]
    if found := read_sweep(folder).runs:
        return found
    raise UserError(f"{folder} is a sweep without a finished run.")


def _read(folder: Path) -> Run:
    for name in ("summary.json", "config.yaml"):
        if not (folder / name).is_file():
            raise UserError(f"{folder} is not the folder of a finished run or of a sweep: it has no {name}.")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    if "test/right" in summary:
        summary["test/accuracy_interval"] = accuracy_interval(summary["test/right"], summary["test/rows"])
    config = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"), resolve=False)
    leaves = {key: value for key, value in dotted(config) if not isinstance(value, dict)}
    settings = {key: value for key, value in leaves.items() if not f"{key}.".startswith(APART)}
    return Run(folder, summary, settings | {"data_hash": summary.get("data_hash")})


def _names(settings: list[dict[str, Any]]) -> list[str]:
    """The preset of each, and in the order of the config as few settings as tell those of the same preset apart."""
    names = [str(each.get("preset")) for each in settings]
    for preset in set(names):
        places = [place for place, each in enumerate(settings) if str(each.get("preset")) == preset]
        for key in dict.fromkeys(key for place in places for key in settings[place]):
            longer = {place: f"{names[place]} {key.split('.')[-1]}={settings[place].get(key)}" for place in places}
            if len(set(longer.values())) > len({names[place] for place in places}):
                for place in places:
                    names[place] = longer[place]
    return names
