"""The card that goes with a trained model."""

from pathlib import Path
from typing import Any

CARD = """---
library_name: transformers
pipeline_tag: text-classification
tags: [identiformer, interpretability]
---

# {preset} text classifier

Made by `{command}`.

| figure | validation | test |
|---|---|---|
{figures}

{right}{parameters:,} parameters; {versions}.

## Use

```python
import identiformer.models  # registers the architecture
from transformers import pipeline

classify = pipeline("text-classification", model="this folder")
```

## What identifiable means

A head is identifiable on a text when its output determines its attention weights: no other weights that sum to 1 give
the same output. `identifiable` is the share of (text, head) pairs for which that holds. It concerns each head's own
output; it does not say that attention is the reason for the prediction.
"""

FIGURES = (
    "accuracy",
    "macro_f1",
    "identifiability/identifiable",
    "identifiability/nullity",
    "identifiability/margin",
    "effective_attention/pearson",
    "effective_attention/pearson_preserve_sum",
)


def write_card(path: Path, preset: str, command: str, summary: dict[str, Any]) -> None:
    """Write a model's card from its run's summary."""
    rows = [f"| {name} | {_figure(summary, f'val/{name}')} | {_figure(summary, f'test/{name}')} |" for name in FIGURES]
    tested = "test/right" in summary
    right = f"{summary['test/right']:,} of {summary['test/rows']:,} test texts right; " if tested else ""
    versions = [f"{key.split('/')[1]} {value}" for key, value in summary.items() if key.startswith("versions/")]
    card = CARD.format(
        preset=preset,
        command=command,
        figures="\n".join(rows),
        right=right,
        parameters=summary["parameters"],
        versions=", ".join(versions),
    )
    path.write_text(card, encoding="utf-8")


def _figure(summary: dict[str, Any], name: str) -> str:
    return f"{summary[name]:.4f}" if name in summary else ""
