"""What a person sees on the terminal: errors that end with the one sentence that matters."""

from rich.console import Console
from rich.markup import escape

from pptoolkit.errors import PPToolkitError

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def show_error(error: PPToolkitError) -> None:
    """Show an error; of a failed run, the failing rank's own traceback first, so that the cause is last on the screen."""
    failure = getattr(error, "failure", None)
    run = getattr(error, "run", None)
    if failure is not None:
        err.print(f"\nrank {failure.rank} raised:", style="dim")
        err.print(escape(failure.trace.rstrip()), style="dim", soft_wrap=True)
    if run is not None:
        err.print(f"the run is readable: pptoolkit report {escape(str(run.path))}", style="dim", soft_wrap=True)
    err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
