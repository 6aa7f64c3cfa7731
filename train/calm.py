"""Libraries, kept from talking of their own insides."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import datasets
import transformers

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
    """Leave out what does not concern a user; with `quiet`, or where nobody looks on, also progress bars of data."""
    for name in ("lightning.pytorch", "lightning.fabric", "huggingface_hub", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    transformers.logging.disable_progress_bar()
    if quiet or not sys.stderr.isatty():
        datasets.disable_progress_bars()
    with warnings.catch_warnings():
        for message in UNCONCERNING:
            warnings.filterwarnings("ignore", f".*{message}")
        yield
