"""The folder of a sweep: its runs, and what became of each of its points."""

import json
from pathlib import Path
from typing import Any, NamedTuple


class Sweep(NamedTuple):
    """A sweep, as far as it went.

    Attributes:
        folder: Where everything is.
        points: What became of each point, by its number: `overrides`, and either `run`, the name of its run's folder in
            `folder`, or `error`, a sentence.
    """

    folder: Path
    points: dict[int, dict[str, Any]]

    @property
    def runs(self) -> list[Path]:
        """Folders of the finished runs."""
        return [self.folder / point["run"] for point in self.points.values() if "run" in point]

    @property
    def errors(self) -> dict[int, str]:
        """Why points failed, by their numbers."""
        return {number: point["error"] for number, point in self.points.items() if "error" in point}


def is_sweep(folder: Path) -> bool:
    """Whether this is the folder of a sweep."""
    return (folder / "sweep.json").is_file()


def read_sweep(folder: Path) -> Sweep:
    """What is recorded of a sweep's points."""
    records = sorted((folder / "points").glob("*.json"))
    return Sweep(folder, {int(path.stem): json.loads(path.read_text(encoding="utf-8")) for path in records})
