"""The ``pptoolkit`` command: thin; each subcommand calls a function that a notebook could call too."""

import sys
from collections.abc import Sequence
from typing import Any

import typer

from pptoolkit.cli import collect, demo, export, foreign, monitoring, plan, plans, profile, read, serve, simulate, train, verify
from pptoolkit.cli.screen import show_error
from pptoolkit.errors import PPToolkitError

# Newer releases of typer carry a copy of click of their own: what they raise is no exception of the click that is installed.
_ClickException: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

app = typer.Typer(
    name="pptoolkit",
    help="Train pipeline-parallel models, see where the bubbles are, apply better cuts, check the gain.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("train")(train.train)
app.command("verify")(verify.verify)
app.command("report")(read.report)
app.command("suggest")(plan.suggest)
app.command("apply")(read.apply)
app.command("plans")(plans.plans)
app.command("layout")(plans.layout)
app.command("compare")(read.compare)
app.command("profile")(profile.profile)
app.command("simulate")(simulate.simulate)
app.command("import")(foreign.import_run)
app.command("export")(export.export)
app.command("dashboard")(serve.dashboard)
app.command("collect")(collect.collect)
app.command("demo")(demo.demo)
app.add_typer(monitoring.prometheus)
app.add_typer(monitoring.grafana)


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
    except typer.Exit as leaving:
        return int(leaving.exit_code)
    except _ClickException as wrong:
        wrong.show()
        return int(wrong.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return 130
    return code if isinstance(code, int) else 0
