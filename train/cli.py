"""The console program `identiformer`. Commands import what they need when they run."""

import shlex
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from .errors import UserError, near_match

app = typer.Typer(
    help="Transformer text classifiers whose attention can be trusted as an explanation.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

Data = Annotated[str | None, typer.Option("--data", help="File to train on; alone, it is split 80/10/10.")]
Validation = Annotated[str | None, typer.Option("--validation", help="File to validate on.")]
Test = Annotated[str | None, typer.Option("--test", help="File to test on.")]
Text = Annotated[list[str] | None, typer.Option("--text", help="Text column; give it again for a second one. [text]")]
Label = Annotated[str | None, typer.Option("--label", help="Label column. [label]")]
Encoding = Annotated[str | None, typer.Option("--encoding", help="Encoding of the files. [utf-8]")]
Separator = Annotated[str | None, typer.Option("--separator", help="Character between columns. [by the file's ending]")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars, no tables.")]


@app.callback()
def identiformer() -> None:
    """Keeps the commands apart even while there is one."""


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def train(
    context: typer.Context,
    data: Data = None,
    validation: Validation = None,
    test: Test = None,
    text: Text = None,
    label: Label = None,
    encoding: Encoding = None,
    separator: Separator = None,
    quiet: Quiet = False,
) -> None:
    """Train a classifier, measuring identifiability in every validation.

    Options of the form `key=value` change the configuration, in any order:

    - `identiformer train layer=identifiable`
    - `identiformer train --data reviews.csv --text review --label stars layer=shared_value seed=1`
    - `identiformer train layer=identifiable model.d_key=8 data.max_length=128 trainer.max_epochs=2`

    Layers: `standard`, `small_key`, `identifiable`, `shared_value`.
    """
    overrides = _overrides(context) + (["quiet=true"] if quiet else [])

    def work() -> None:
        from .api import train as run

        run(
            overrides,
            data=data,
            validation=validation,
            test=test,
            text=text or (),
            label=label,
            encoding=encoding,
            separator=separator,
            command=context.obj,
        )

    _answer(work)


@app.command()
def compare(runs: Annotated[list[str], typer.Argument(help="Folders of finished runs, as `runs/demo/*`.")]) -> None:
    """Compare finished runs: accuracy beside identifiability.

    Example: `identiformer compare runs/demo/*`
    """

    def work() -> None:
        from rich.console import Console

        from .report.compare import compare as read
        from .report.compare import comparison_table

        Console().print(comparison_table(read(runs)))

    _answer(work)


def main(argv: list[str] | None = None) -> int:
    """Run a command line. 0: done; 1: training failed; 2: a user's mistake; 130: interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        app(args=argv, prog_name="identiformer", obj=shlex.join(["identiformer", *argv]))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


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


def _answer(work: Callable[[], Any]) -> None:
    """Do the work; a user's mistake ends in its sentence and code 2, an interruption in 130, a fault of ours in 1."""
    try:
        work()
    except UserError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        raise typer.Exit(130) from None
    except Exception:
        traceback.print_exc()
        raise typer.Exit(1) from None


def _fail(message: str) -> None:
    print(f"Error: {message}", file=sys.stderr)
    raise typer.Exit(2)
