"""``pptoolkit profile``: what each layer costs, before any pipeline runs."""

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from pptoolkit.cli.screen import out
from pptoolkit.cli.simulate import numbers
from pptoolkit.config import RunConfig
from pptoolkit.planner.cost_profile import CostProfile


def profile(
    config: Annotated[Path, typer.Argument(help="Job file, e.g. examples/gpt.toml.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the profile.")] = Path("profile.json"),
    sizes: Annotated[
        str | None, typer.Option(help="Micro-batch sizes, e.g. 2,4,8; default: half, one and twice the configured one.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Passes of each size.", min=2)] = 7,
    threads: Annotated[int, typer.Option(help="Threads, as many as a rank will have.", min=1)] = 1,
) -> None:
    """Time every layer in this process for several micro-batch sizes, and write the cost model that suggest --profile plans from."""
    job_config = RunConfig.load(config)
    import torch

    from pptoolkit.job import make_job
    from pptoolkit.profiler import profile_job

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with out.status("timing layers"):
            chosen = numbers(sizes, "--sizes") if sizes is not None else ()
            found = profile_job(make_job(job_config), job_config, sizes=chosen, repeats=repeats, name=config.stem)
    finally:
        torch.set_num_threads(before)
    found.save(output)
    out.print(table(found))
    out.print(
        f"wrote {escape(str(output))}; plan from it with: pptoolkit suggest --profile {escape(str(output))} --ranks 2", soft_wrap=True
    )


def table(found: CostProfile) -> Table:
    """Return a profile as a table: times as fixed part plus part per sample."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left", title_style="dim")
    shown.title = (
        f"{found.name}: ms as fixed + per sample (input: of the backward), micro-batches of {', '.join(map(str, found.sizes))} samples"
    )
    for name in ("layer", "forward", "backward", "input", "optim.", "param. MiB", "act. KiB", "out KiB"):
        shown.add_column(name, justify="left" if name == "layer" else "right", no_wrap=True)
    for layer in found.layers:
        lines = [
            f"{line.fixed_s * 1e3:.1f}+{line.per_sample_s * 1e3:.2f}" for line in (layer.forward, layer.backward, layer.backward_input)
        ]
        sizes = (layer.parameter_bytes / 2**20, layer.activation_bytes / 2**10, layer.boundary_bytes / 2**10)
        shown.add_row(escape(layer.name), *lines, f"{layer.optimizer_s * 1e3:.2f}", *(f"{size:,.1f}" for size in sizes))
    return shown
