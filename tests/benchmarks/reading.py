"""Seconds and peak memory of reading, vocabulary, tokenising, and all: `python tests/benchmarks/reading.py [ROWS]`."""

import csv
import itertools
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
WORDS = [f"word{number}" for number in range(30_000)]


def write(path: Path) -> None:
    """A file of texts of 60 words, frequent words more often than rare ones, and three labels."""
    generator = random.Random(0)
    weights = list(itertools.accumulate(1 / (1 + number) for number in range(len(WORDS))))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for _ in range(ROWS):
            writer.writerow([" ".join(generator.choices(WORDS, cum_weights=weights, k=60)), generator.choice("abc")])


def main() -> None:
    """Time each step in one run."""
    from identiformer.train.data.labels import encode_labels
    from identiformer.train.data.prepare import Texts, tokenize
    from identiformer.train.data.reading import Columns, read_file
    from identiformer.train.data.tokenizer import make_tokenizer

    def step(name, work):
        started = time.perf_counter()
        result = work()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{name:12} {time.perf_counter() - started:7.1f} s   peak memory {peak:6.0f} MiB")
        return result

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        write(path)
        print(f"{ROWS:,} rows, {path.stat().st_size / 2**20:.0f} MiB")
        step("at the start", lambda: None)
        rows = step("reading", lambda: read_file(path, Columns()))
        tokenizer = step("vocabulary", lambda: make_tokenizer("word", Texts(rows), 8000, 256))
        labelled, _ = encode_labels(rows, ["a", "b", "c"], "The file")
        step("tokenising", lambda: tokenize(labelled, tokenizer))
        command = [sys.executable, "-m", "identiformer", "data", str(path)]
        step("all: data", lambda: subprocess.run(command, env=os.environ | {"HF_DATASETS_CACHE": folder}, check=True))
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"peak memory of `identiformer data` {peak:.0f} MiB")


if __name__ == "__main__":
    main()
