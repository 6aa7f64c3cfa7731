"""Peak memory, in a process of its own."""

import json
import subprocess
import sys

SCRIPT = """
import csv, json, resource, sys
import lightning as L
import torch
from identiformer.train.callbacks import IdentifiabilityMonitor
from identiformer.train.classifier import TextClassifier
from identiformer.train.data.batches import batches_of
from identiformer.train.data.labels import encode_labels
from identiformer.train.data.prepare import tokenize
from identiformer.train.data.reading import Columns, read_file
from identiformer.train.predicting import load_model

torch.set_num_threads(1)
loaded, peaks = load_model(sys.argv[1]), []
for texts in (1_000, 10_000):
    with open("rows.csv", "w", newline="") as file:
        lines = (["fine film and dull one"[: n % 23], "good"] for n in range(texts))
        csv.writer(file).writerows([["review", "verdict"], *lines])
    rows, _ = encode_labels(read_file("rows.csv", Columns(("review",), "verdict")), loaded.label_names, "The file")
    silent = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(accelerator="cpu", callbacks=[IdentifiabilityMonitor()], **silent)
    module = TextClassifier(loaded.model, optimizer=torch.optim.AdamW)
    loader = batches_of(tokenize(rows, loaded.tokenizer), loaded.tokenizer, 32)
    (scores,) = trainer.validate(module, loader, verbose=False)
    assert "val/identifiability/nullity" in scores
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(json.dumps(peaks))
"""


def test_a_validation_of_ten_times_the_texts_takes_no_more_memory(finished, tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(finished.folder)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    few, many = json.loads(done.stdout.splitlines()[-1])
    assert many <= 1.05 * few
