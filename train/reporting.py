"""What a report shows: finished runs, and what the heads of their models do with texts."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from datasets import Dataset
from omegaconf import OmegaConf
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from .analyzing import head_counts, progress, stream
from .calm import calm_libraries
from .data.prepare import tokenize
from .errors import UserError
from .predicting import Loaded, load_model, probabilities, read_rows
from .report.analysis import AnalyzedHead
from .report.html import LIMIT, STEP, Report, pack, page
from .report.runs import run_folders
from .statistics import accuracy_interval

ROWS = 20  # of a file that are explored unless more are asked for
Places = dict[tuple[int, int], list[int]]  # tokens by layer and head
FOOTER = (
    "Weights are shown to four decimals, as identiformer analyze prints them. They are about each head's own output; "
    "they do not say why a model decides as it does."
)


@calm_libraries()
@torch.no_grad()
def make_report(
    models: str | Sequence[str],
    texts: Sequence[str] = (),
    *,
    data: str | None = None,
    text: Sequence[str] = (),
    encoding: str = "utf-8",
    separator: str | None = None,
    rows: int = ROWS,
    intervals: Sequence[tuple[int, int, int]] = (),
    quiet: bool = True,
) -> Report:
    """A page about runs: configs, scores, curves and measures, and an explorer of their attention over texts.

    Args:
        models: A run folder, sweep folder, model folder or hub name, or several.
        texts: Texts to explore; with k text columns, every k of them are one row.
        data: A file, instead of texts.
        text: Its text columns, if not those that a model was trained on.
        encoding: Its encoding.
        separator: Character between its columns, if not by its ending.
        rows: How many of its rows are explored, the first ones.
        intervals: Layer, head and token, each from 0, of rows of attention whose exact intervals are shown.
        quiet: No progress bar.

    Raises:
        UserError: If a model or the file cannot be read, there is nothing to show or no such layer, head or token, or
            the page would be larger than `LIMIT`.
    """
    given = [models] if isinstance(models, str) else models
    names = [str(folder) for name in given for folder in run_folders(Path(name))]
    wanted = {place[:2]: [token for *other, token in intervals if tuple(other) == place[:2]] for place in intervals}
    explorable = bool(texts) or data is not None
    if wanted and not explorable:
        raise UserError("--intervals belong to texts: give texts, or a file by --data.")
    shown, blocks = [], {}
    for number, name in enumerate(names):
        about = _about(name, explorable)
        if explorable:
            loaded = load_model(name, classifier=False)
            source = read_rows(loaded, texts, data=data, text=text, encoding=encoding, separator=separator)
            source = source.select(range(min(len(source), rows if data else len(source))))
            about["texts"] = _explored(loaded, source, wanted, number, blocks, quiet)
        shown.append(about)
    title = names[0] if len(names) == 1 else f"{len(names)} models"
    title = f"identiformer report: {Path(title).name or title}"
    return page(title, {"title": title, "footer": FOOTER, "step": STEP, "models": shown}, blocks)


def _about(name: str, explorable: bool) -> dict[str, Any]:
    """What a run folder holds; of any other model only its config and card."""
    folder = Path(name)
    finished = (folder / "summary.json").is_file()
    if not finished and not explorable:
        raise UserError(
            f"{name!r} is not the folder of a finished run, so that it has no curves to show: give texts, or a file by "
            "--data, to look at its attention."
        )
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8")) if finished else {}
    model = folder / "model" if finished else folder
    files = {"Config": folder / "config.yaml", "Model": model / "config.json", "Card": model / "README.md"}
    return {
        "name": folder.name or name,
        "facts": _facts(summary, folder, model),
        "scores": _scores(summary),
        "documents": {title: path.read_text(encoding="utf-8") for title, path in files.items() if path.is_file()},
        "curves": _curves(folder / "metrics.csv", best=finished),
        "measures": _measures(folder / "identifiability.jsonl") if finished else [],
        "texts": [],
    }


def _facts(summary: dict[str, Any], folder: Path, model: Path) -> list[tuple[str, str]]:
    """Rows of the overview: names and what is written beside them."""
    facts: dict[str, Any] = {}
    if summary:
        config: Any = OmegaConf.load(folder / "config.yaml")
        source = [OmegaConf.select(config.data, name) for name in ("embedded", "train", "folder", "hub.path")]
        facts = {"layer": config.preset, "seed": str(config.seed), "command": config.command}
        facts |= {"data": next(filter(None, source), None)}
    if (model / "config.json").is_file():
        labels = json.loads((model / "config.json").read_text(encoding="utf-8")).get("id2label", {})
        facts |= {"classes": ", ".join(labels.values())}
    if "test/accuracy" in summary:
        low, high = accuracy_interval(summary["test/right"], summary["test/rows"])
        facts |= {"test accuracy, 95 % interval": f"{low:.4f} to {high:.4f}"}
    others = {name: value for name, value in summary.items() if name not in ("seed", "preset", "format_version")}
    figures = {name: value for name, value in others.items() if isinstance(value, int) or "/" not in name}
    versions = {name: value for name, value in others.items() if name.startswith("versions/")}
    facts |= {name.replace("/", " ").replace("_", " "): value for name, value in figures.items()}
    facts |= {name.removeprefix("versions/"): value for name, value in versions.items()}
    forms = {int: "{:,}", float: "{:,.1f}"}
    return [(name, forms.get(type(value), "{}").format(value)) for name, value in facts.items()]


def _scores(summary: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Scores over all layers by name and split."""
    scores: dict[str, dict[str, float]] = {}
    for key, value in summary.items():
        split, _, name = key.partition("/")
        if (
            split in ("val", "test")
            and isinstance(value, float)
            and math.isfinite(value)
            and not name.startswith("layer_")
        ):
            scores.setdefault(name, {})[split] = value
    return scores


def _curves(path: Path, best: bool) -> dict[str, list[tuple[int, float]]]:
    """Points (step, value) of each column of training and validation.

    A finished run's last validation is that of its best checkpoint, no point of the curve.
    """
    if not path.is_file():
        return {}
    log, curves = pd.read_csv(path).replace([math.inf, -math.inf], math.nan), {}
    for name in log.columns:
        points = log[["step", name]].dropna()
        points = points[:-1] if best and name.startswith("val/") else points
        if name.startswith(("train/", "val/")) and len(points):
            curves[name] = [(int(step), float(value)) for step, value in zip(points["step"], points[name], strict=True)]
    return curves


def _measures(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [_finite(json.loads(line)) for line in lines]


def _explored(
    loaded: Loaded, source: Dataset, wanted: Places, number: int, blocks: dict[str, str], quiet: bool
) -> list[dict[str, Any]]:
    """The texts with their heads, whose packed maps are added to `blocks`."""
    sizes, rows = head_counts(loaded), tokenize(source, loaded.tokenizer)
    _check_intervals(wanted, sizes, [len(ids) for ids in rows["input_ids"]])
    written = {line["row"]: " · ".join(part or "" for part in line["text"]) for line in source}  # pyright: ignore
    texts: dict[int, dict[str, Any]] = {}
    with progress(len(rows) * sum(sizes), quiet) as advance:
        for read, found in stream(loaded, rows, wanted, everything=True):
            facts = {"text": written[read.row], "tokens": read.tokens, "special": read.special, "prediction": []}
            text = texts.setdefault(read.row, {"row": read.row, **facts, "heads": []})
            block = f"maps-{number}-{read.row}-{found.layer}-{found.head}"
            blocks[block] = pack(found.maps)  # pyright: ignore[reportArgumentType]
            text["heads"].append(_head(found, block))
            _check_size(blocks, len(texts))
            advance()
    if not texts:
        raise UserError("There is no text with a token to explore.")
    for row, classes in _predicted(loaded, rows).items():
        texts.get(row, {})["prediction"] = classes
    return list(texts.values())


def _head(found: AnalyzedHead, block: str) -> dict[str, Any]:
    """What is said of a head beside its maps; ends of intervals in whole steps, as the maps are."""
    maps: Any = found.maps
    intervals = {
        token: [[round(weight / STEP) for weight in end.tolist()] for end in ends]
        for token, ends in maps.intervals.items()
    }
    converged = maps.max_entropy_converged.tolist()
    facts = {"layer": found.layer, "head": found.head, "block": block, "intervals": intervals, "converged": converged}
    return facts | {"measures": _finite(found.measures)}


def _predicted(loaded: Loaded, rows: Dataset) -> dict[int, list[tuple[str, float]]]:
    """Classes and their probabilities by row, the likeliest first; none where the model has no classifier."""
    if type(loaded.model) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.values():
        return {}
    names = loaded.label_names
    numbers, found = probabilities(loaded, rows, quiet=True)
    return {
        row: sorted(zip(names, line, strict=True), key=lambda pair: -pair[1])
        for row, line in zip(numbers.tolist(), found.tolist(), strict=True)
    }


def _check_intervals(wanted: Places, sizes: list[int], lengths: list[int]) -> None:
    longest = max(lengths, default=0)
    for (layer, head), tokens in wanted.items():
        if not 0 <= layer < len(sizes):
            raise UserError(f"--intervals: there is no layer {layer}: the model has layers 0 to {len(sizes) - 1}.")
        if not 0 <= head < sizes[layer]:
            raise UserError(f"--intervals: there is no head {head}: layer {layer} has heads 0 to {sizes[layer] - 1}.")
        if bad := [token for token in tokens if not 0 <= token < longest]:
            raise UserError(f"--intervals: there is no token {bad[0]}: the longest text has tokens 0 to {longest - 1}.")


def _check_size(blocks: dict[str, str], texts: int) -> None:
    size = sum(map(len, blocks.values()))
    if size > LIMIT:
        what = "give a shorter text" if texts == 1 else "give fewer or shorter texts, --rows chooses how many of a file"
        raise UserError(
            f"The page would be larger than {LIMIT // 1_000_000} MB by its text {texts}, with {len(blocks)} maps: "
            f"{what}, or fewer models."
        )


def _finite(numbers: dict[str, Any]) -> dict[str, Any]:
    """NaN stands for what is not defined; JSON has null for it."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}
