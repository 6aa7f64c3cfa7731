"""What measuring adds to a validation, as a ratio within one run: `python tests/benchmarks/monitor.py [FOLDER]`.

CPU seconds of the validation after training on one batch, for each layer, on the embedded film review snippets or on a
folder of splits.
"""

import sys
import tempfile
import time

import lightning as L
import torch
from _timing import medians, save
from identiformer.models.layers.presets import PRESETS
from identiformer.train.callbacks import IdentifiabilityMonitor
from identiformer.train.classifier import TextClassifier
from identiformer.train.composing import compose_config
from identiformer.train.data.prepare import prepare
from identiformer.train.loop import build, build_model, loader

ROUNDS = 7
DATA = ["data=folder", f"data.folder={sys.argv[1]}"] if len(sys.argv) > 1 else []


class Stopwatch(L.Callback):
    """CPU seconds of the last validation, callbacks included."""

    seconds = 0.0

    def on_validation_start(self, *_: object) -> None:
        self.start = time.process_time()

    def on_validation_end(self, *_: object) -> None:
        self.seconds = time.process_time() - self.start


def validations(preset: str, folder: str):
    """Two functions that give the seconds of a validation, without and with the monitor."""
    cfg = compose_config([f"layer={preset}", *DATA])
    data = prepare(cfg.data)
    model, _ = build_model(cfg, data)

    def seconds(*monitors: L.Callback) -> float:
        watch = Stopwatch()
        trainer = L.Trainer(
            max_epochs=1,
            limit_train_batches=1,
            accelerator="cpu",
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            callbacks=[watch, *monitors],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        loaders = (loader(data, split, cfg, trainer) for split in ("train", "validation"))
        trainer.fit(TextClassifier(model, optimizer=build(cfg.optimizer)), *loaders)
        return watch.seconds

    return {"without": seconds, "with": lambda: seconds(IdentifiabilityMonitor(folder=folder))}


def main() -> None:
    """Print a line per layer."""
    torch.set_num_threads(1)
    results = {}
    print(f"{'layer':14} {'without':>9} {'with':>9} {'ratio (aim: 1.25)':>18}")
    with tempfile.TemporaryDirectory() as folder:
        for preset in PRESETS:
            found = medians(ROUNDS, validations(preset, folder), own=True)
            results[preset] = found | {"ratio": found["with"] / found["without"]}
            print(f"{preset:14} {found['without']:7.2f} s {found['with']:7.2f} s {results[preset]['ratio']:18.2f}")
    save("monitor", results)


if __name__ == "__main__":
    main()
