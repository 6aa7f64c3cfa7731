"""The Python entries behind the commands."""

from collections.abc import Sequence

from .composing import compose_config, override
from .loop import RunResult, run


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

    Raises:
        UserError: If a file, a label or an option does not allow training; one sentence says which.
    """
    own = {
        "data.train": data,
        "data.validation": validation,
        "data.test": test,
        "data.label": label,
        "data.encoding": encoding,
        "data.separator": separator,
        "command": command,
    }
    files = ["data=files"] if data else []
    columns = [f"data.text=[{','.join(override('', name)[1:] for name in text)}]"] if text else []
    given = [override(key, value) for key, value in own.items() if value is not None]
    return run(compose_config([*files, *overrides, *given, *columns]))
