"""Settings of all tests: no network, a cache of their own, one thread per process, interruptions."""

import csv
import os
import signal
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp(prefix="identiformer-tests-")
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
fixed = "FUZZ" not in os.environ  # a run fails for what was changed, not by chance
settings.register_profile("ours", derandomize=fixed, deadline=None)
settings.load_profile("ours")
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start what is in the background without it

GOOD = ("fine", "warm", "clever", "moving", "bright", "tender", "witty")
BAD = ("dull", "cold", "clumsy", "tired", "flat", "noisy", "silly")


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV of 90 short reviews that a few words decide, with columns `review` and `verdict`."""
    path = tmp_path_factory.mktemp("data") / "reviews.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "review", "verdict"])
        for number in range(90):
            words, verdict = (GOOD, "good") if number % 2 else (BAD, "bad")
            chosen = [words[(number * step) % 7] for step in range(1, 2 + number % 5)]
            writer.writerow([number, f"A film, {number % 10} minutes of it, {' and '.join(chosen)}.", verdict])
    return path


SMALL = (
    "model.d_model=24",
    "model.num_heads=3",
    "data.batch_size=8",
    "data.max_length=12",
    "trainer.max_epochs=2",
    "trainer.accelerator=cpu",
    "optimizer.lr=0.01",
    "callbacks.monitor.texts=5",
    "quiet=true",
)


@pytest.fixture(scope="session")
def small() -> list[str]:
    """Overrides that make a run take seconds."""
    return list(SMALL)


@pytest.fixture(scope="session")
def finished(reviews: Path, tmp_path_factory: pytest.TempPathFactory):
    """A finished run on `reviews` with the identifiable layer."""
    from identiformer.train import train

    runs = tmp_path_factory.mktemp("runs")
    overrides = [*SMALL, "layer=identifiable", f"runs={runs}"]
    return train(overrides, data=str(reviews), text=["review"], label="verdict")
