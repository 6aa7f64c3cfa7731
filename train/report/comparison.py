"""A comparison on the screen and in files."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from rich.console import Group as Lines
from rich.table import Table

from ..errors import writing
from .compare import Comparison, PairedTest
from .literal import literal
from .runs import Group

NUMBER = "{:.3f}".format
FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "test macro F1": ("test/macro_f1", NUMBER),
    "parameters": ("parameters", "{:,.0f}".format),
    "training, s": ("train_seconds", "{:.0f}".format),
    "identifiable": ("val/identifiability/identifiable", NUMBER),
    "nullity": ("val/identifiability/nullity", "{:.2f}".format),
    "margin": ("val/identifiability/margin", "{:.2g}".format),
    "key ambiguity": ("val/identifiability/key_ambiguity", "{:.2f}".format),
    "slack": ("val/identifiability/slack", NUMBER),
    "Pearson": ("val/effective_attention/pearson", NUMBER),
    "  sums kept": ("val/effective_attention/pearson_preserve_sum", NUMBER),
    "residual": ("val/effective_attention/residual", NUMBER),
}
TEX = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
)
LABEL, COLUMN = 20, 19  # letters of the screen that a table's first column and each other one take


def comparison_table(comparison: Comparison) -> pd.DataFrame:
    """What people compare, as text: a column per group beside the figures' names."""
    tests = {test.name: test for test in comparison.tests}
    columns = {group.name: _figures(group, tests.get(group.name), comparison.margin) for group in comparison.groups}
    table = pd.DataFrame(columns).dropna(how="all").fillna("-")
    return table.rename_axis("layer").reset_index()


def notes(comparison: Comparison) -> list[str]:
    """What must be said beside the table."""
    counts = [len(group.runs) for group in comparison.groups]
    said = ["identifiable to residual: means over (text, head) pairs of validation, the margin's median"]
    said += ["±: standard deviation over seeds"] if max(counts) > 1 else []
    if comparison.tests:
        said += [
            f"difference: accuracy less that of {comparison.baseline}; McNemar's p is about the models as they are",
            f"within {comparison.margin:g}: equally performant within that margin, a test at level .05: its 90 % "
            "interval lies inside",
        ]
        said += ["where there is one seed, a difference is that of its model, not of others trained alike"] * (
            1 in counts
        )
    return said


def describe_comparison(comparison: Comparison, width: int) -> Lines:
    """The table, cut where it is wider than the screen, and the notes."""
    whole = comparison_table(comparison)
    abreast = max(1, (width - LABEL) // COLUMN)
    parts = []
    for start in range(1, whole.shape[1], abreast):
        heading, *lines = _lines(whole.iloc[:, [0, *range(start, min(start + abreast, whole.shape[1]))]])
        table = Table(heading[0])
        for name in heading[1:]:
            table.add_column(literal(name), justify="right", overflow="fold")
        for line in lines:
            table.add_row(*map(literal, line))
        parts.append(table)
    return Lines(*parts, *map(literal, notes(comparison)))


def write_comparison(comparison: Comparison, path: str, kind: str) -> None:
    """Write a comparison as `csv` (a line per group, all figures), `json` (everything), `latex` or `markdown`.

    Raises:
        UserError: If the file cannot be written.
    """
    with writing(path):
        Path(path).write_text(WRITERS[kind](comparison), encoding="utf-8")


def _csv(comparison: Comparison) -> str:
    table = comparison.table
    return table.assign(seeds=[" ".join(map(str, seeds)) for seeds in table["seeds"]]).to_csv(index=False)


def _json(comparison: Comparison) -> str:
    return json.dumps(comparison.to_dict(), indent=2, ensure_ascii=False) + "\n"


def _latex(comparison: Comparison) -> str:
    table = comparison_table(comparison)
    heading, *lines = [" & ".join(text.strip().translate(TEX) for text in line) + r" \\" for line in _lines(table)]
    said = [f"% {note}" for note in ["needs the package booktabs", *notes(comparison)]]
    begin, end = rf"\begin{{tabular}}{{l{'r' * (table.shape[1] - 1)}}}", r"\end{tabular}"
    return "\n".join([*said, begin, r"\toprule", heading, r"\midrule", *lines, r"\bottomrule", end]) + "\n"


def _markdown(comparison: Comparison) -> str:
    table = comparison_table(comparison)
    heading, *lines = [f"| {' | '.join(map(_plain, line))} |" for line in _lines(table)]
    said = [f"{_plain(note)}  " for note in notes(comparison)]
    return "\n".join([heading, "|---|" + "---:|" * (table.shape[1] - 1), *lines, "", *said]) + "\n"


WRITERS = {"csv": _csv, "json": _json, "latex": _latex, "markdown": _markdown}


def _lines(table: pd.DataFrame) -> list[list[str]]:
    return [list(table.columns), *table.to_numpy().tolist()]


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$&])", r"\\\1", text.strip())


def _figures(group: Group, test: PairedTest | None, margin: float) -> dict[str, str | None]:
    """The cells of a group's column; None where there is nothing to say."""
    figures, summary = group.figures, group.runs[0].summary
    single = len(group.runs) == 1 and "test/accuracy_interval" in summary
    shown = {
        "seeds": ", ".join(map(str, group.seeds)),
        "test accuracy": _mean(figures, "test/accuracy", NUMBER),
        "  95 % interval": _interval(summary["test/accuracy_interval"], "") if single else None,
        "difference": f"{test.difference:+.3f}" if test else None,
        "  its 95 % interval": _interval(test.interval) if test else None,
        "  McNemar's p": f"{test.mcnemar:.2g}" if test else None,
        "  90 % interval": _interval(test.equivalence_interval) if test else None,
        f"  within {margin:g}": ("yes" if test.equivalent else "not shown") if test else None,
    }
    return shown | {name: _mean(figures, key, form) for name, (key, form) in FIGURES.items()}


def _mean(figures: pd.DataFrame, key: str, form: Callable[[float], str]) -> str | None:
    if key not in figures.index:
        return None
    mean, deviation = figures.loc[key]
    return form(mean) + (f" ± {form(deviation)}" if deviation > 0 else "")


def _interval(ends: list[float], sign: str = "+") -> str:
    return f"[{ends[0]:{sign}.3f}, {ends[1]:{sign}.3f}]"
