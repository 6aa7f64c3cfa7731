"""What all benchmarks share: timing in turn, and a record of what was timed where."""

import importlib.metadata
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

FOLDER = Path("runs/bench")
PACKAGES = ("identiformer", "torch", "transformers", "lightning")


def medians(rounds: int, functions: Mapping[str, Callable[[], Any]], own: bool = False) -> dict[str, float]:
    """Median seconds of each function by its name, as timed here or as it gives its `own`; every round runs all."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            result = function()
            seconds[name].append(result if own else time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def save(name: str, results: Any) -> None:
    """Write results as JSON, with the machine and the versions that gave them."""
    machine = {"processor": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}
    versions = {package: importlib.metadata.version(package) for package in PACKAGES}
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps({"machine": machine, "versions": versions, "results": results}, indent=1) + "\n")
    print(f"written to {path}")
