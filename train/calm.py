"""Libraries, kept from talking of their own insides."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import datasets
import transformers
from lightning.fabric.utilities.exceptions import MisconfigurationException

from .errors import UserError, first_line

UNCONCERNING = (
    "does not have many workers",
    "logs directory .* not empty",
    "Checkpoint directory",
    "training batches .* smaller than the logging interval",
    ".*LeafSpec",
    "Glyph .* missing from",
    "`broadcast_buffers` is deprecated",  # for what older versions do not know
)


@contextmanager
def calm_libraries(quiet: bool = False) -> Iterator[None]:
    """Leave out what does not concern a user; with `quiet`, or where nobody looks on, also progress bars of data.

    Raises:
        UserError: If Lightning says that settings do not fit each other.
    """
    for name in ("lightning.pytorch", "lightning.fabric", "huggingface_hub", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    transformers.logging.disable_progress_bar()
    if quiet or not sys.stderr.isatty():
        datasets.disable_progress_bars()
    with warnings.catch_warnings():
        for message in UNCONCERNING:
            warnings.filterwarnings("ignore", f".*{message}")
        try:
            yield
        except (MisconfigurationException, RuntimeError) as error:
            if not isinstance(error, MisconfigurationException) and "Early stopping conditioned on" not in str(error):
                raise
            raise UserError(first_line(error)) from None
