"""The Python entries behind the commands."""

import os
from collections.abc import Sequence
from pathlib import Path

from .calm import calm_libraries
from .composing import compose_config, override
from .data.prepare import ENDINGS, TextData, prepare
from .errors import UserError
from .loop import RunResult, run
from .resuming import stopped_run
from .sweep_folder import Sweep
from .sweeping import run_sweep


def train(
    overrides: Sequence[str] = (),
    *,
    data: str | None = None,
    validation: str | None = None,
    test: str | None = None,
    text: Sequence[str] = (),
    label: str | None = None,
    encoding: str | None = None,
    separator: str | None = None,
    command: str = "identiformer.train.train(...)",
    resume: str | None = None,
) -> RunResult:
    """Train a classifier, as `identiformer train` does.

    Args:
        overrides: As on the command line: `["layer=identifiable", "trainer.max_epochs=2"]`.
        data: A file to train on. Alone, it is split 80/10/10.
        validation: A file to validate on.
        test: A file to test on.
        text: Names of the text columns, if not `text`.
        label: Name of the label column, if not `label`.
        encoding: Encoding of the files, if not UTF-8.
        separator: Character between the columns, if not by the file's ending.
        command: What the run's card says it was made by.
        resume: The folder of a run that was stopped, and now goes on as if it never was. It keeps its config, so that
            only `quiet=true` may be given beside: the schedule of learning rates is laid out for its epochs.

    Raises:
        UserError: If a file, a label or an option does not allow training; one sentence says which.
        TrainingError: If training diverges, or the disk is full; what is saved until then stays.
    """
    columns = {"data": data, "validation": validation, "test": test, "label": label}
    own = _own(overrides, text=text, encoding=encoding, separator=separator, **columns)
    if resume is not None:
        return _resume(resume, [*overrides, *own])
    return run(compose_config([*overrides, *own, override("command", command)]))


def _resume(folder: str, given: Sequence[str]) -> RunResult:
    if others := [text for text in given if not text.startswith("quiet=")]:
        raise UserError(f"{others[0]}: a run goes on with its own config, so give nothing else with --resume {folder}.")
    stopped = stopped_run(Path(folder))
    stopped.cfg.quiet = "quiet=true" in given
    return run(stopped.cfg, stopped)


def sweep(
    overrides: Sequence[str],
    *,
    data: str | None = None,
    validation: str | None = None,
    test: str | None = None,
    text: Sequence[str] = (),
    label: str | None = None,
    encoding: str | None = None,
    separator: str | None = None,
) -> Sweep:
    """Train a classifier for every combination of values, as `identiformer train --multirun` does.

    A sweep that was stopped goes on when it is asked for again, see `run_sweep`. A point that fails is recorded, and
    the others run.

    Args:
        overrides: As on the command line: `["layer=standard,identifiable", "seed=range(3)"]`.
        data: As in `train`, with the rest.
        validation: A file to validate on.
        test: A file to test on.
        text: Names of the text columns.
        label: Name of the label column.
        encoding: Encoding of the files.
        separator: Character between the columns.

    Raises:
        UserError: If an option is not there; nothing has run then.
    """
    columns = {"data": data, "validation": validation, "test": test, "label": label}
    return run_sweep(overrides, _own(overrides, text=text, encoding=encoding, separator=separator, **columns))


@calm_libraries()
def describe(
    source: str,
    overrides: Sequence[str] = (),
    *,
    text: Sequence[str] = (),
    label: str | None = None,
    encoding: str | None = None,
    separator: str | None = None,
) -> TextData:
    """Read, split and tokenise a file, a folder of splits or a named data set, as training would, without training.

    Args:
        source: A file; a folder with files called train, validation and test; or the name of a data set in
            `conf/data/`.
        overrides: As on the command line: `["data.max_length=128"]`.
        text: As in `train`, with the rest.
        label: Name of the label column.
        encoding: Encoding of the file.
        separator: Character between its columns.

    Raises:
        UserError: If training on it would be refused.
    """
    own = _own(overrides, text=text, label=label, encoding=encoding, separator=separator)
    if os.path.isdir(source):
        chosen = ["data=folder", override("data.folder", source)]
    elif os.path.exists(source) or Path(source).suffix.lower() in ENDINGS:
        chosen = ["data=files", override("data.train", source)]
    else:
        chosen = [f"data={source}"]
    return prepare(compose_config([*chosen, *overrides, *own]).data)


def _own(
    overrides: Sequence[str], *, text: Sequence[str] = (), data: str | None = None, **options: str | None
) -> list[str]:
    """Overrides from the options that people type by name."""
    if data is not None and (others := [typed for typed in overrides if typed.startswith("data=")]):
        raise UserError(f"--data {data} and {others[0]} are two sources of data: leave one out.")
    given = {"train": data, **options}
    files = ["data=files"] if data is not None else []
    columns = [f"data.text=[{','.join(override('', name)[1:] for name in text)}]"] if text else []
    return files + [override(f"data.{key}", value) for key, value in given.items() if value is not None] + columns
