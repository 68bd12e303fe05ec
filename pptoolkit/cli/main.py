"""The ``pptoolkit`` command: thin; each subcommand calls a function that a notebook could call too."""

import sys
from collections.abc import Sequence

import typer
from click.exceptions import Abort, ClickException, Exit

from pptoolkit.cli import demo, export, read, serve, train
from pptoolkit.cli.screen import show_error
from pptoolkit.errors import PPToolkitError

app = typer.Typer(
    name="pptoolkit",
    help="Train pipeline-parallel models, see where the bubbles are, apply better cuts, check the gain.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("train")(train.train)
app.command("report")(read.report)
app.command("suggest")(read.suggest)
app.command("apply")(read.apply)
app.command("compare")(read.compare)
app.command("export")(export.export)
app.command("dashboard")(serve.dashboard)
app.command("demo")(demo.demo)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 fine, 1 the run or check failed, 2 the input was wrong, 130 stopped by Ctrl-C."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors are shown, never as a traceback of ours."""
    try:
        code = app(args=list(arguments) if arguments is not None else None, standalone_mode=False)
    except PPToolkitError as error:
        show_error(error)
        return error.exit_code
    except Exit as leaving:
        return int(leaving.exit_code)
    except ClickException as wrong:
        wrong.show()
        return wrong.exit_code
    except (Abort, KeyboardInterrupt):
        return 130
    return code if isinstance(code, int) else 0
