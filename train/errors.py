"""What a user is told: the exception for what they can mend, and the monitor's warning."""

import difflib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class UserError(Exception):
    """A user's mistake: its message is one sentence that says what, where, and what to do. Exit code 2."""


class TrainingError(Exception):
    """Training cannot go on: its message is one sentence that says why, and what to do. Exit code 1."""


class MonitorWarning(UserWarning):
    """The monitor could not measure something. Training goes on."""


class Interrupted(KeyboardInterrupt):
    """Long work was interrupted after some of it.

    Attributes:
        found: What was found until then.
    """

    def __init__(self, found: Any):
        super().__init__()
        self.found = found


@contextmanager
def users_mistakes(kinds: tuple[type[Exception], ...] = (ValueError,)) -> Iterator[None]:
    """Take errors of some kinds for a user's mistake; `models` refuses by a ValueError."""
    try:
        yield
    except kinds as error:
        raise UserError(str(error)) from None


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Take it for a user's mistake if `path` cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}.") from None


def refuse_unwritable(path: str | None) -> None:
    """Refuse a file to be written that cannot be, before anything is computed for it; None is none.

    Raises:
        UserError: If so.
    """
    if path is None:
        return
    folder = os.path.dirname(path) or "."
    if not os.path.basename(path) or os.path.isdir(path):
        raise UserError(f"{path} cannot be written: it is a folder, not a file.")
    if not os.path.isdir(folder):
        raise UserError(f"{path} cannot be written: there is no folder {folder!r}.")


def visible(text: str) -> str:
    """A text in one line that only prints: line ends and commands to a terminal are written as in Python."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def first_line(error: BaseException) -> str:
    """What an error says, in one line, or else its kind."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what led to it, what led to that, and so on."""
    while error:
        yield error
        error = error.__cause__ or error.__context__


def covers_interruption(error: BaseException) -> bool:
    """Whether an error was raised while an interruption was on its way through a library, which lost it."""
    return any(isinstance(cause, KeyboardInterrupt) for cause in causes(error))


def near_match(word: str, words: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the nearest of `words`, whatever their case and outer spaces, or nothing."""
    plain = {other.strip().casefold(): other for other in words}
    near = difflib.get_close_matches(word.strip().casefold(), plain, n=1)
    return f" Did you mean {plain[near[0]]!r}?" if near else ""
