"""The diagnosis in a report: the verdict, the bubble by cause, what the critical path consists of. Draws; computes nothing."""

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from pptoolkit.analysis.causes import BubbleCauses
from pptoolkit.errors import counted
from pptoolkit.planner.report import Report

_BAR = 30
_CAUSES = {
    "compute": "ideal step: compute alone",
    "schedule": "+ order of the schedule",
    "imbalance": "+ uneven stages",
    "jitter": "+ jitter and stragglers",
    "link": "+ links",
    "data": "+ data",
    "host": "+ host, between the ops",
    "step_end": "+ collectives, optimizer",
    "unexplained": "+ unexplained",
}


def diagnosis(found: Report) -> list[RenderableType]:
    """Return what a report says about why the step takes as long as it does."""
    parts: list[RenderableType] = []
    if found.causes is not None:
        parts.append(_waterfall(found.causes))
    if found.critical_path is not None:
        total = sum(found.critical_path.seconds.values())
        pieces = ", ".join(
            f"{kind} {seconds / total:.0%}" for kind, seconds in found.critical_path.seconds.items() if seconds > 0.005 * total
        )
        stages = ", ".join(f"stage {stage} {share:.0%}" for stage, share in found.critical_path.compute_share.items())
        parts.append(Text(f"critical path: {pieces}; of its compute {stages}"))
    if found.slowdown is not None:
        worst = sorted(found.slowdown.by_type.items(), key=lambda item: -item[1])[:2]
        types = ", ".join(f"{name} {ratio:.3f}" for name, ratio in worst)
        stage, ratio = max(found.slowdown.by_stage.items(), key=lambda item: item[1])
        parts.append(
            Text(
                f"against a step without stragglers: {found.slowdown.ratio:.3f} times as long "
                f"(by {types}; by pipeline rank {stage}: {ratio:.3f})"
            )
        )
    if found.verdict is not None:
        label = f"bottleneck: stage {found.verdict.stage}" if found.verdict.stage is not None else "no bottleneck"
        if found.verdict.findings:
            label = f"{label}: {found.verdict.title}" if found.verdict.stage is not None else found.verdict.title
        parts.append(Text.assemble((label, "bold"), f": {found.verdict.evidence} (confidence {found.verdict.confidence:.0%})"))
        for finding in found.verdict.findings[1:]:
            parts.append(Text(f"also: {finding.title}: {finding.evidence}"))
    parts += [Text(f"change: {change.sentence}", style="yellow") for change in found.changes]
    return parts


def _waterfall(causes: BubbleCauses) -> Table:
    table = Table("", "ms", "share", "", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.title, table.title_justify, table.title_style = "from the ideal step to the measured one", "left", "dim"
    for column in table.columns[1:3]:
        column.justify = "right"
    step_s = causes.step_time_s
    for name, low, high in causes.waterfall():
        if name != "compute" and abs(high - low) < 5e-4 * step_s and name != "unexplained":
            continue
        begin, end = (round(_BAR * min(max(edge / step_s, 0.0), 1.0)) for edge in sorted((low, high)))
        bar = " " * begin + "#" * max(1, end - begin)
        table.add_row(_CAUSES[name], f"{(high - low) * 1e3:,.1f}", f"{(high - low) / step_s:.1%}", bar)
    table.add_row("= measured step", f"{step_s * 1e3:,.1f}", "100.0%", "#" * _BAR, style="bold")
    table.caption = f"mean of {counted(causes.steps, 'step')}, whose replay is off by {causes.replay_error_ratio:+.2%}"
    table.caption_justify = "left"
    return table
