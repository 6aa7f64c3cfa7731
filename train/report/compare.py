"""Runs side by side: how well they classify, how far their attention is identified, and if they do equally well."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..errors import UserError, near_match
from ..statistics import difference_interval, equivalence_interval, mcnemar
from .runs import Group, Run, group_runs, read_runs

MARGIN = 0.02


@dataclass(frozen=True)
class PairedTest:
    """How a group's accuracy on the test texts differs from the baseline's; `train.statistics` says how seeds count.

    Attributes:
        name: The group.
        difference: Its mean accuracy less the baseline's.
        interval: The difference's 95 % interval, by a paired bootstrap.
        mcnemar: McNemar's p-value for the models as they are.
        equivalence_interval: The difference's 90 % interval for the test of equivalence at level .05.
        equivalent: Whether it lies within the margin.
    """

    name: str
    difference: float
    interval: list[float]
    mcnemar: float
    equivalence_interval: list[float]
    equivalent: bool


@dataclass(frozen=True)
class Comparison:
    """Groups of runs that differ only by seed.

    Attributes:
        groups: The groups, in the order of their first runs.
        baseline: Name of the group that the others are tested against.
        margin: The largest difference in accuracy that counts as equally performant.
        tests: A test for each other group; none where a run has no test split.
    """

    groups: list[Group]
    baseline: str
    margin: float
    tests: list[PairedTest]

    @property
    def table(self) -> pd.DataFrame:
        """A line per group: `name`, `preset`, `runs`, `seeds`, and each figure's mean and, as `..._std`, deviation."""
        return pd.DataFrame([_line(group) for group in self.groups])

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain types."""
        groups = [_line(group) | {"runs": [_facts(run) for run in group.runs]} for group in self.groups]
        tests = [asdict(test) for test in self.tests]
        return {"baseline": self.baseline, "margin": self.margin, "groups": groups, "tests": tests}


def compare(runs: Sequence[str | Path], *, baseline: str | None = None, margin: float = MARGIN) -> Comparison:
    """Compare finished runs of one test set.

    Args:
        runs: Folders of runs and of sweeps.
        baseline: Name of the group that the others are tested against. None: the only one with the preset `standard`,
            or else the first.
        margin: The largest difference in accuracy that counts as equally performant, as a share of the texts.

    Raises:
        UserError: If a folder is not that of a finished run or of a sweep, two runs have not the same test texts, there
            is no such baseline, or the margin is none.
    """
    if not 0 < margin < 1:
        raise UserError(f"The margin is {margin}: give a share of the texts, as 0.02 for two points.")
    found = read_runs(runs)
    _check_same_test(found)
    groups = group_runs(found)
    reference = _baseline(groups, baseline)
    tests = [test for group in groups if group is not reference if (test := _test(reference, group, margin))]
    return Comparison(groups, reference.name, margin, tests)


def _check_same_test(runs: Sequence[Run]) -> None:
    tested = [run for run in runs if run.predictions is not None]
    for run in tested[1:]:
        if not _same_test(tested[0], run):
            raise UserError(
                f"{tested[0].folder} and {run.folder} were tested on different texts: compare runs of one test set."
            )


def _same_test(first: Run, second: Run) -> bool:
    columns: Any = ["row", "label"]
    same_content = first.summary.get("test/data_hash") == second.summary.get("test/data_hash")
    return same_content and first.predictions[columns].equals(second.predictions[columns])  # pyright: ignore


def _baseline(groups: Sequence[Group], name: str | None) -> Group:
    names = [group.name for group in groups]
    if name is not None and name not in names:
        raise UserError(
            f"There is no {name!r} to compare with; choose among {', '.join(names)}.{near_match(name, names)}"
        )
    chosen = [group for group in groups if group.name == name or (name is None and group.preset == "standard")]
    return chosen[0] if len(chosen) == 1 else groups[0]


def _test(baseline: Group, group: Group, margin: float) -> PairedTest | None:
    first, second = baseline.right, group.right
    if first is None or second is None:
        return None
    lower, upper = ends = equivalence_interval(first, second)
    difference, interval = float(second.mean() - first.mean()), difference_interval(first, second)
    equivalent = -margin < lower and upper < margin
    return PairedTest(group.name, difference, interval, mcnemar(first, second), ends, equivalent)


def _line(group: Group) -> dict[str, Any]:
    figures = group.figures
    deviations = {f"{name}_std": value for name, value in figures["std"].items() if not np.isnan(value)}
    facts = {"name": group.name, "preset": group.preset, "runs": len(group.runs), "seeds": group.seeds}
    return facts | figures["mean"].to_dict() | deviations


def _facts(run: Run) -> dict[str, Any]:
    return {"folder": str(run.folder), "seed": run.summary["seed"], **run.figures}
