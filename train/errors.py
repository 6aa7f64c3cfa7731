"""What a user is told: the exception for what they can mend, and the monitor's warning."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A user's mistake: its message is one sentence that says what, where, and what to do. Exit code 2."""


class MonitorWarning(UserWarning):
    """The monitor could not measure something. Training goes on."""


def near_match(word: str, words: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the nearest of `words`, or nothing."""
    near = difflib.get_close_matches(word, list(words), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
