"""The console program `identiformer`. Commands import what they need when they run."""

import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from itertools import product, takewhile
from typing import Annotated, Any

import typer

from .errors import Interrupted, TrainingError, UserError, covers_interruption, near_match, refuse_unwritable, visible

app = typer.Typer(
    help="Transformer text classifiers whose attention can be trusted as an explanation.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

UsageError: Any = typer.BadParameter.__base__

Model = Annotated[str, typer.Argument(help="A run folder, its `model/`, a checkpoint folder, or a hub name.")]
TrainData = Annotated[str | None, typer.Option("--data", help="File to train on; alone, it is split 80/10/10.")]
Data = Annotated[str | None, typer.Option("--data", help="CSV, TSV, JSONL or parquet file.")]
Validation = Annotated[str | None, typer.Option("--validation", help="File to validate on.")]
Test = Annotated[str | None, typer.Option("--test", help="File to test on.")]
Text = Annotated[list[str] | None, typer.Option("--text", help="Text column; give it again for a second one.")]
Label = Annotated[str | None, typer.Option("--label", help="Label column.")]
Encoding = Annotated[str | None, typer.Option("--encoding", help="Encoding of the files, if not UTF-8.")]
FileEncoding = Annotated[str, typer.Option("--encoding", help="Encoding of the file.")]
Separator = Annotated[
    str | None, typer.Option("--separator", help="Character between columns, if not by the file's ending.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars, no tables.")]


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def train(
    context: typer.Context,
    data: TrainData = None,
    validation: Validation = None,
    test: Test = None,
    text: Text = None,
    label: Label = None,
    encoding: Encoding = None,
    separator: Separator = None,
    multirun: Annotated[bool, typer.Option("--multirun", "-m", help="A run for each combination of values.")] = False,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Go on with a run that was stopped, in its folder.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train a classifier, measuring identifiability in every validation.

    Options of the form `key=value` change the configuration, in any order:

    - `identiformer train layer=identifiable`
    - `identiformer train --data reviews.csv --text review --label stars layer=shared_value seed=1`
    - `identiformer train layer=identifiable model.d_key=8 data.max_length=128 trainer.max_epochs=2`

    - `identiformer train model=pretrained model.name=FOLDER_OR_HUB_NAME layer=identifiable`

    Layers: `standard`, `small_key`, `identifiable`, `shared_value`.

    With `--multirun` an option may have several values; a sweep that was stopped goes on by the same command:

    - `identiformer train --multirun layer=standard,identifiable seed=0,1,2 name=layers`

    A run that was stopped, by Ctrl-C, a crash or a full disk, goes on as if it never was:

    - `identiformer train --resume runs/default/standard-...`
    """
    overrides = _overrides(context) + (["quiet=true"] if quiet else [])
    files: dict[str, Any] = {"data": data, "validation": validation, "test": test, "text": text or (), "label": label}
    files |= {"encoding": encoding, "separator": separator}

    def work() -> None:
        from .api import sweep
        from .api import train as run

        if multirun:
            _refuse({"--resume": resume}, "leave it out with --multirun; a sweep goes on by the command that began it")
            _show_sweep(sweep(overrides, **files), quiet)
        else:
            run(overrides, **files, command=context.obj, resume=resume)

    _answer(work)


@app.command()
def evaluate(
    model: Model,
    data: Annotated[str, typer.Option("--data", help="Labelled CSV, TSV, JSONL or parquet file.")],
    text: Text = None,
    label: Label = None,
    encoding: FileEncoding = "utf-8",
    separator: Separator = None,
    drop_unknown: Annotated[bool, typer.Option(help="Leave out rows whose label the model does not know.")] = False,
    devices: Annotated[int, typer.Option("--devices", min=1, help="Devices that share the work.")] = 1,
) -> None:
    """Score a trained model on a labelled file, and measure its identifiability there.

    Columns are those that the model was trained on, unless others are given.

    Example: `identiformer evaluate runs/demo/standard-... --data more.csv`
    """

    def work() -> None:
        from rich.console import Console

        from .predicting import evaluate as run
        from .report.console import describe_scores

        unknown = "drop" if drop_unknown else "error"
        options = {"encoding": encoding, "separator": separator, "unknown_labels": unknown, "devices": devices}
        Console().print(describe_scores(run(model, data, text=text or (), label=label, **options)))

    _answer(work)


@app.command()
def predict(
    model: Model,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; with k text columns, every k are one row.")] = None,
    data: Data = None,
    text: Text = None,
    encoding: FileEncoding = "utf-8",
    separator: Separator = None,
    output: Annotated[str | None, typer.Option("--output", help="CSV or JSONL file to write.")] = None,
    quiet: Quiet = False,
) -> None:
    """Predict the classes of texts or of a file's rows, in their order, leaving none out.

    - `identiformer predict checkpoints/movie-snippets-identifiable "a fine film" "a dull one"`
    - `identiformer predict runs/demo/standard-... --data new.csv --output predictions.csv`
    """

    def work() -> None:
        from .predicting import predict as run
        from .report.console import show_predictions, write_predictions

        _check_output(output)
        options = {"encoding": encoding, "separator": separator, "quiet": quiet}
        table = run(model, texts or (), data=data, text=text or (), **options)
        if output is not None:
            write_predictions(table, output)
        else:
            show_predictions(table, texts if len(texts or ()) == len(table) else None)

    _answer(work)


@app.command()
def analyze(
    model: Model,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; with k text columns, every k are one row.")] = None,
    data: Data = None,
    text: Text = None,
    encoding: FileEncoding = "utf-8",
    separator: Separator = None,
    row: Annotated[int | None, typer.Option("--row", help="Only this row of the file, from 1.")] = None,
    layer: Annotated[int | None, typer.Option("--layer", help="Layer of --token and --png, from 0.")] = None,
    head: Annotated[int | None, typer.Option("--head", help="Head of --token and --png, from 0.")] = None,
    token: Annotated[int | None, typer.Option("--token", help="Token, from 0, whose weights are listed.")] = None,
    json: Annotated[str | None, typer.Option("--json", help="File to write everything to.")] = None,
    csv: Annotated[str | None, typer.Option("--csv", help="File to write all maps to, a line per weight.")] = None,
    png: Annotated[str | None, typer.Option("--png", help="Picture to draw; SVG if its name ends so.")] = None,
    hide_special: Annotated[bool, typer.Option("--hide-special", help="Show no special tokens, as [CLS].")] = False,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Measure how many hidden tokens still point to their inputs, not heads.")
    ] = False,
    distance: Annotated[
        str | None, typer.Option("--distance", help="What is near for --tokens: cosine, the default, or l2.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", help="Rows that --tokens draws at random. Default: 300.")
    ] = None,
    max_length: Annotated[int | None, typer.Option("--max-length", help="Tokens at which --tokens cuts texts.")] = None,
    attribution: Annotated[
        bool, typer.Option("--attribution", help="Measure what input tokens contribute to hidden tokens, not heads.")
    ] = False,
    probes: Annotated[
        int | None, typer.Option("--probes", help="Random probes per token of --attribution; 0: exact. Default: 32.")
    ] = None,
    previous: Annotated[
        bool, typer.Option("--previous", help="Contributions of a layer's own input, not of the embedding.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Measure each head's attention on texts: how far it is determined, and what it could be instead.

    - `identiformer analyze checkpoints/movie-snippets-identifiable "a fine film"`
    - `identiformer analyze runs/demo/standard-... --data new.csv --row 3 --layer 0 --head 2 --token 5`
    - `identiformer analyze runs/demo/standard-... "a fine film" --png film.png --json film.json --csv film.csv`
    - `identiformer analyze runs/demo/standard-... --data new.csv --tokens --png rates.png`
    - `identiformer analyze runs/demo/standard-... --data new.csv --attribution --png mixing.png`
    """

    def work() -> None:
        from rich.console import Console

        from .analyzing import analyze as run
        from .report.analysis import head_table, token_table

        options = {"data": data, "text": text or (), "encoding": encoding, "separator": separator}
        options |= {"json": json, "csv": csv, "png": png, "quiet": quiet}
        for path in (json, csv, png):
            refuse_unwritable(path)
        of_heads = {"--head": head, "--token": token, "--hide-special": hide_special or None}
        of_tokens = {"--distance": distance, "--sample": sample, "--max-length": max_length}
        of_attribution = {"--probes": probes, "--previous": previous or None}
        _refuse({} if tokens else of_tokens, "it goes with --tokens")
        _refuse({} if attribution else of_attribution, "it goes with --attribution")
        if tokens:
            others = {"--attribution": attribution or None, "--row": row, "--layer": layer}
            _refuse(of_heads | others, "leave it out with --tokens, which probes all layers on many texts")
            return _identify_tokens(model, texts or (), options, of_tokens)
        options |= {"row": row, "layer": layer}
        if attribution:
            _refuse(of_heads, "it is about a head's attention, so leave it out with --attribution")
            return _attribute(model, texts or (), probes, previous, options)
        options |= {"head": head, "token": token, "hide_special": hide_special}
        found = run(model, texts or (), **options)
        if not quiet:
            Console().print(head_table(found.table))
        if not quiet and found.tokens is not None:
            Console().print(token_table(found.tokens, found.title, hide_special))

    _answer(work)


@app.command("data", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def describe_data(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="A file, a folder of splits, or the name of a data set.")],
    text: Text = None,
    label: Label = None,
    encoding: Encoding = None,
    separator: Separator = None,
) -> None:
    """Read a data set as training would, without training: rows, drops, labels, majority baseline, lengths, cuts.

    - `identiformer data reviews.csv --text review --label stars data.max_length=128`
    - `identiformer data ag_news`
    """
    overrides = _overrides(context)

    def work() -> None:
        from rich.console import Console

        from .api import describe
        from .report.console import describe_data as shown

        options = {"label": label, "encoding": encoding, "separator": separator}
        Console().print(shown(describe(source, overrides, text=text or (), **options)))

    _answer(work)


@app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(help="Folders of finished runs and of sweeps, as `runs/demo/*`.")],
    baseline: Annotated[
        str | None, typer.Option(help="What the others are tested against; `standard` or else the first.")
    ] = None,
    margin: Annotated[
        float, typer.Option(help="Difference that counts as equally performant, a share of the texts.")
    ] = 0.02,
    csv: Annotated[str | None, typer.Option("--csv", help="File for all figures, a line per group.")] = None,
    json: Annotated[str | None, typer.Option("--json", help="File for everything.")] = None,
    latex: Annotated[str | None, typer.Option("--latex", help="File for the table.")] = None,
    markdown: Annotated[str | None, typer.Option("--markdown", help="File for the table.")] = None,
    plots: Annotated[str | None, typer.Option("--plots", help="Folder for pictures, PNG and SVG.")] = None,
    measure: Annotated[str, typer.Option(help="Measure of the pictures, as `slack` or `nullity`.")] = "identifiable",
) -> None:
    """Compare finished runs of one test set: accuracy beside identifiability, and whether they do equally well.

    Runs that differ only by seed are one column.

    - `identiformer compare runs/demo/*`
    - `identiformer compare runs/layers/* --margin 0.01 --markdown table.md --plots pictures --measure slack`
    """
    files = {"csv": csv, "json": json, "latex": latex, "markdown": markdown}

    def work() -> None:
        from rich.console import Console

        from .report.compare import compare as read
        from .report.comparison import describe_comparison, write_comparison

        console, comparison = Console(), read(runs, baseline=baseline, margin=margin)
        console.print(describe_comparison(comparison, console.width))
        for kind, path in files.items():
            if path:
                write_comparison(comparison, path, kind)
        if plots:
            from .report.comparison_plots import draw_comparison

            draw_comparison(comparison, plots, measure)

    _answer(work)


@app.command()
def report(
    models: Annotated[
        list[str],
        typer.Argument(help="A folder of a run, sweep or model, or a hub name, or several folders; then texts."),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="HTML file to write.")],
    data: Data = None,
    text: Text = None,
    encoding: FileEncoding = "utf-8",
    separator: Separator = None,
    rows: Annotated[
        int, typer.Option("--rows", min=1, help="How many rows of the file are shown, from the first.")
    ] = 20,
    intervals: Annotated[
        tuple[str, str, str] | None,
        typer.Option(
            "--intervals",
            metavar="LAYER HEAD TOKEN",
            help="Rows of attention, from 0, to show exact intervals of; each can be several, as `0 0,1 3,5`.",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write one HTML page that needs no network: scores, curves and measures of runs, and their attention over texts.

    Of the arguments the first is a model, and so are those after it that are folders of runs or models; the rest are
    texts to look at the attention of.

    - `identiformer report runs/demo/* -o report.html`
    - `identiformer report runs/demo/standard-... "a fine film" --intervals 0 2 1 -o report.html`
    - `identiformer report checkpoints/movie-snippets-standard --data new.csv --rows 5 -o report.html`
    """

    def work() -> None:
        from .reporting import make_report as run

        refuse_unwritable(output)
        folders = 1 + len(list(takewhile(_is_model, models[1:])))
        options = {"encoding": encoding, "separator": separator, "rows": rows, "quiet": quiet}
        options |= {"intervals": _places(intervals), "text": text or (), "data": data}
        run(models[:folders], models[folders:], **options).save(output)
        if not quiet:
            print(f"{output}: {os.path.getsize(output) / 1e6:.1f} MB")

    _answer(work)


def _places(intervals: tuple[str, str, str] | None) -> list[tuple[int, ...]]:
    """Every layer, head and token that three lists of numbers name together."""
    if intervals is None:
        return []
    try:
        return list(product(*([int(number) for number in numbers.split(",")] for numbers in intervals)))
    except ValueError:
        raise UserError(f"--intervals {' '.join(intervals)}: give three whole numbers, or lists as 3,5.") from None


def _is_model(argument: str) -> bool:
    return any(os.path.isfile(os.path.join(argument, name)) for name in ("summary.json", "config.json", "sweep.json"))


def main(argv: list[str] | None = None) -> int:
    """Run a command line. 0: done; 1: training failed; 2: a user's mistake; 130: interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    command = shlex.join(["identiformer", *argv])
    try:
        with _others_silent():
            return app(args=argv, prog_name="identiformer", obj=command, standalone_mode=False) or 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except UsageError as error:
        return _complain(error)


def _complain(error: Any) -> int:
    """What typer says of a command line, in one line; help, where nothing was typed."""
    message = error.format_message()
    if "\n" in message or not message:
        error.show()
    else:
        path = error.ctx.command_path if error.ctx else "identiformer"
        stop = "" if message.endswith((".", "?")) else "."
        print(f"Error: {visible(message)}{stop} See `{path} --help`.", file=sys.stderr)
    return 2


@contextmanager
def _others_silent() -> Iterator[None]:
    """Of several processes that do one run together, let only the first print what it finds."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(sys.stdout if _is_first() else nowhere):
        yield


def _is_first() -> bool:
    return not any(int(os.environ.get(name, 0)) for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))


def _overrides(context: typer.Context) -> list[str]:
    """What typer left over, if it is Hydra's.

    Raises:
        typer.Exit: With code 2, if something is neither an option nor an override.
    """
    for argument in context.args:
        if argument.startswith("-") or not ("=" in argument or argument.startswith(("~", "+"))):
            options = [name for parameter in context.command.params for name in parameter.opts]
            _fail(f"There is no option {argument!r}.{near_match(argument, options)}")
    return list(context.args)


def _show_sweep(swept: Any, quiet: bool) -> None:
    """What became of a sweep's points.

    Raises:
        typer.Exit: With code 1, if a point failed.
    """
    from rich.console import Console

    from .report.console import describe_sweep

    Console(quiet=quiet).print(describe_sweep(swept))
    for number, sentence in swept.errors.items():
        print(f"Point {number}: {sentence}", file=sys.stderr)
    if swept.errors:
        print(
            f"{len(swept.errors)} of {len(swept.points)} points failed; the same command tries them again.",
            file=sys.stderr,
        )
        raise typer.Exit(1)


def _identify_tokens(model: str, texts: Sequence[str], options: dict[str, Any], of_tokens: dict[str, Any]) -> None:
    from .report.rates import rate_tables
    from .tokens import identify_tokens

    given = {name[2:].replace("-", "_"): value for name, value in of_tokens.items() if value is not None}
    _show(
        lambda: identify_tokens(model, texts, **options, **given),
        lambda found: rate_tables(found.table, found.facts),
        options["quiet"],
    )


def _attribute(model: str, texts: Sequence[str], probes: int | None, previous: bool, options: dict[str, Any]) -> None:
    from .attributing import PROBES, attribute
    from .report.attribution import layer_table

    number, source = PROBES if probes is None else probes or None, "previous" if previous else "embedding"
    _show(
        lambda: attribute(model, texts, probes=number, source=source, **options),
        lambda found: layer_table(found.table, found.distances, found.title),
        options["quiet"],
    )


def _show(work: Callable[[], Any], shown: Callable[[Any], Any], quiet: bool) -> None:
    """Do long work and print what it found, when interrupted what was found until then."""
    from rich.console import Console

    interruption = None
    try:
        found = work()
    except Interrupted as stop:
        found, interruption = stop.found, stop
    if not quiet:
        Console().print(shown(found))
    if interruption:
        raise interruption


def _refuse(options: dict[str, Any], why: str) -> None:
    if given := [name for name, value in options.items() if value is not None]:
        raise UserError(f"{given[0]}: {why}.")


def _check_output(output: str | None) -> None:
    if output is not None and not output.lower().endswith((".csv", ".jsonl")):
        raise UserError(f"--output {output!r}: give a name that ends in .csv or .jsonl.")
    refuse_unwritable(output)


def _answer(work: Callable[[], Any]) -> None:
    """Do the work; a user's mistake ends in its sentence and code 2, an interruption in 130, any other fault in 1."""
    try:
        work()
    except typer.Exit:
        raise
    except UserError as error:
        _fail(str(error))
    except KeyboardInterrupt as interrupt:
        if _is_first():
            print(str(interrupt) or "Interrupted.", file=sys.stderr)
        raise typer.Exit(130) from None
    except TrainingError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except Exception as error:
        if covers_interruption(error):
            print("Interrupted.", file=sys.stderr)
            raise typer.Exit(130) from None
        traceback.print_exc()
        raise typer.Exit(1) from None


def _fail(message: str) -> None:
    print(f"Error: {visible(message)}", file=sys.stderr)
    raise typer.Exit(2)
