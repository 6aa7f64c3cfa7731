"""What a user is told: the exception for what they can mend, and the monitor's warning."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
def users_mistakes() -> Iterator[None]:
    """Take what `models` refuses, a ValueError, for a user's mistake."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from None


def near_match(word: str, words: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the nearest of `words`, or nothing."""
    near = difflib.get_close_matches(word, list(words), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
