"""Files that are whole or not there, what a full disk says, and folders that one process has at a time."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .errors import causes


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file beside `path` to write, which takes its place once it is on the disk; on a fault `path` is as it was."""
    part = path.with_name(f".{path.name}.part")
    try:
        with naming(path):
            yield part
            with part.open("rb+") as file:
                os.fsync(file.fileno())
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Raise an OSError that names `path` when the disk is full, whatever a library makes of it."""
    try:
        yield
    except Exception as error:
        if full_disk(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise


def full_disk(error: BaseException | None) -> BaseException | None:
    """Of an error and those that led to it, the one that says that the disk is full or a quota used up."""
    return next(filter(_says_full, causes(error)), None)


def _says_full(error: BaseException) -> bool:
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or os.strerror(errno.ENOSPC) in str(error)


def lock(folder: Path) -> IO[str] | None:
    """A lock that dies with this process, and that its children do not inherit; None where another process has it."""
    file = (folder / "lock").open("w")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.close()
        return None
    return file
