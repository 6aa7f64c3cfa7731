"""The CSV log of a run that can be stopped at any moment and go on."""

import csv
from pathlib import Path

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from .disk import naming, whole_file


class CSVLog(CSVLogger):
    """Lightning's CSV log, but it goes on with the file that is there, and a stop while writing loses nothing of it."""

    @property
    @rank_zero_experiment
    def experiment(self) -> "_Writer":
        """The writer of `metrics.csv`."""
        if self._experiment is None:
            self._experiment = _Writer(self.log_dir)
        return self._experiment  # pyright: ignore[reportReturnType]


class _Writer(ExperimentWriter):
    def save(self) -> None:
        with naming(self.metrics_file_path):
            super().save()

    def _check_log_dir_exists(self) -> None:  # where Lightning deletes the file
        if (path := Path(self.metrics_file_path)).exists():
            self.metrics_keys = path.open(encoding="utf-8").readline().strip().split(",")

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        path = Path(self.metrics_file_path)
        with path.open(encoding="utf-8", newline="") as old:
            rows = list(csv.DictReader(old))
        with whole_file(path) as part, part.open("w", encoding="utf-8", newline="") as new:
            writer = csv.DictWriter(new, fieldnames=fieldnames)
            writer.writeheader()
            writer.writerows(rows)
