"""The one exception for what a user can mend."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A user's mistake: its message is one sentence that says what, where, and what to do. Exit code 2."""


def near_match(word: str, words: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the nearest of `words`, or nothing."""
    near = difflib.get_close_matches(word, list(words), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
