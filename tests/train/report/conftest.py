"""Folders of finished runs, made without training."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from identiformer.train.metrics import MEASURES
from omegaconf import OmegaConf

RIGHT = np.arange(200) % 5 != 0  # of 200 test texts


@pytest.fixture
def make_run(tmp_path):
    """Makes a finished run's folder; its measures are all `measure`, and grow with length in the monitor's lines."""

    def make(
        preset="standard", seed=0, right=RIGHT, measure=0.5, data_hash="a", rows=None, labels=None, **model
    ) -> Path:
        folder = tmp_path / "runs" / f"{preset}-seed{seed}-{len(list(tmp_path.glob('runs/*')))}"
        folder.mkdir(parents=True)
        config = {"data": {"train": "a.csv"}, "model": {"d_key": 16, **model}, "optimizer": {"lr": 5e-4}}
        config |= {"scheduler": {"max_lr": 5e-4}, "seed": seed, "preset": preset, "name": folder.name, "runs": "runs"}
        config |= {"logger": {"csv": {}} if seed else {}, "command": f"train seed={seed}", "quiet": bool(seed)}
        OmegaConf.save(OmegaConf.create(config), folder / "config.yaml")
        accuracy = {"test/accuracy": float(right.mean()), "test/right": int(right.sum()), "test/rows": len(right)}
        summary = (
            {f"val/{name}": measure for name in MEASURES} | accuracy | {"test/macro_f1": 0.7, "train_seconds": 9.0}
        )
        summary |= {"preset": preset, "seed": seed, "parameters": 1000, "data_hash": "d", "test/data_hash": data_hash}
        (folder / "summary.json").write_text(json.dumps(summary | {"format_version": 1, "versions/torch": "2"}))
        labels = np.where(np.arange(len(right)) % 2, "good", "bad") if labels is None else labels
        predicted = np.where(right, labels, "ugly")
        table = {"row": np.arange(len(right)) if rows is None else rows, "label": labels, "predicted": predicted}
        pd.DataFrame(table).to_parquet(folder / "predictions.parquet")
        _write_history(folder, measure)
        return folder

    return make


def _write_history(folder, measure):
    """Three epochs of which the second is the best, and the best checkpoint validated and tested."""
    accuracies = [0.6, 0.8, 0.7]
    measures = {f"val/{name}": measure for name in MEASURES}
    log = [{"epoch": epoch, "val/accuracy": accuracy, **measures} for epoch, accuracy in enumerate(accuracies)]
    pd.DataFrame([{"epoch": 0}, *log, {**log[1], "epoch": 3}, {"epoch": 3}]).to_csv(folder / "metrics.csv", index=False)
    lines = [
        {"epoch": epoch, "layer": 0, "head": head, "length_from": start, "length_to": start + 7, "texts": 3}
        | dict.fromkeys(MEASURES, measure * start + head + 100 * (epoch != 1))
        for epoch in range(3)
        for head in range(2)
        for start in (1, 9, 17)
    ]
    (folder / "identifiability.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
