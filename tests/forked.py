"""A command line in a process of its own."""

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path


def start(argv: list[str], errors: str | Path = os.devnull, prepare: Callable[[], None] = lambda: None):
    """A process that prepares and runs the command; forked, so that it need not import everything again."""
    from identiformer.train.cli import main

    def work():
        gc.callbacks.clear()  # hypothesis's would swallow an interruption
        signal.signal(signal.SIGINT, signal.default_int_handler)
        prepare()
        with open(errors, "w") as file, contextlib.redirect_stderr(file):
            code = main(argv)
        sys.exit(code)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process
