"""Reports, suggestions and comparisons as tables that fit 80 columns. Draws; computes nothing."""

from collections.abc import Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pptoolkit.analysis.clocks import RankClock
from pptoolkit.analysis.statistics import Interval
from pptoolkit.cli.render_diagnosis import diagnosis
from pptoolkit.errors import counted
from pptoolkit.planner.compare import Comparison, PredictionCheck
from pptoolkit.planner.report import Report
from pptoolkit.planner.suggestion import Suggestion, Suggestions

_SAME_MACHINE = 0.05  # compute of all ranks together may differ by so much before it is worth a word
_STATES = {
    "compute": "compute",
    "recv_wait": "recv",
    "send_wait": "send",
    "collective": "coll.",
    "optimizer": "optim.",
    "data": "data",
    "checkpoint": "ckpt.",
    "host": "host",
    "unattributed": "unattr.",
}


def report(found: Report) -> RenderableType:
    """Return the whole report of a run."""
    parts: list[RenderableType] = [_headline(found)]
    if found.step_time is not None:
        parts += [_rates(found), _stages(found), _accounting(found)]
        if found.attempt:
            parts.append(_attempt(found))
        if found.links:
            parts.append(_links(found))
    if any(clock.offset_s for clock in found.clocks):
        parts.append(_clocks(found.clocks))
    parts += diagnosis(found)
    parts += [Text(f"cut anew before {segment.sentence}") for segment in found.segments if segment.sentence]
    if found.prediction is not None:
        parts.append(Text(f"this run's plan: {_prediction(found.prediction)}"))
    parts += [Text(f"note: {sentence}", style="yellow") for sentence in found.missing]
    return Group(*parts)


def suggestions(found: Suggestions, layers: tuple[str, ...], *, apply_from: str = "") -> RenderableType:
    """Return the ranked suggestions, or the reason why there are none; ``apply_from``: the run that `apply` would take them from."""
    line = Text.assemble((f"run {found.run_id}", "bold"))
    if found.step_time_s is not None and found.is_profile:
        line.append(f", profiled: the equal-layer cut would take {found.step_time_s * 1e3:.1f} ms a step")
    elif found.step_time_s is not None:
        line.append(f": measured step {found.step_time_s * 1e3:.1f} ms")
    if found.replay_error_ratio is not None and not found.is_profile:
        line.append(f"; the simulator's replay of it is off by {found.replay_error_ratio:+.1%}")
    if not len(found):
        reason = found.no_change.reason if found.no_change else "nothing better is in sight"
        return Group(line, Text.assemble(("no change", "bold green"), f": {reason.removeprefix('no change: ')}"))
    parts: list[RenderableType] = [line]
    for number, item in enumerate(found, start=1):
        parts.append(_suggestion(number, item, layers))
    parts.append(_baselines(found.baselines))
    if apply_from:
        parts.append(Text(f"apply the best one: pptoolkit apply {apply_from} -o plan.toml"))
    return Group(*parts)


def comparison(found: Comparison) -> RenderableType:
    """Return two runs side by side."""
    table = _table("ms a step", "before", "after", "difference")
    table.add_row("run", escape(found.before.run_id), escape(found.after.run_id), "")
    table.add_row("cuts", escape(str(list(found.before.cuts))), escape(str(list(found.after.cuts))), "")
    times = found.before.step_time, found.after.step_time
    table.add_row("step time", *(_ms(time.median) for time in times), f"{found.difference_s.median * 1e3:+,.1f}", style="bold")
    table.add_row("  95 % interval", *(_range(time) for time in times), _range(found.difference_s, sign="+"))
    for state, (before, after, difference) in found.accounting.items():
        if before or after:
            table.add_row(_STATES.get(state, state), _ms(before), _ms(after), f"{difference * 1e3:+,.1f}")
    change = f"{abs(found.gain_ratio):.1%} {'less' if found.gain_ratio > 0 else 'more'} time a step"
    parts: list[RenderableType] = [table, Text(change if found.is_significant else "no difference beyond the noise", style="bold")]
    if not found.same_model:
        others = "these runs train different models (other layers): the difference tells neither of the plan nor of the machine"
        parts.insert(0, Text(others, style="bold yellow"))
    other_speed = found.same_model and abs(found.compute_ratio - 1) > _SAME_MACHINE
    if other_speed:
        note = f"all layers together took {found.compute_ratio - 1:+.0%} time in the second run: the machine itself was not the same"
        parts.append(Text(note, style="yellow"))
    if found.prediction is not None:
        parts.append(Text(_prediction(found.prediction)))
        if other_speed:
            there = found.prediction.predicted.step_time_s * found.compute_ratio
            off = found.prediction.achieved.median / there - 1
            parts.append(Text(f"at the second run's speed of computing the prediction is {there * 1e3:.1f} ms, and {off:+.1%} off"))
    if found.losses is not None:
        same = f"equal to {found.losses.equal_digits} digits at every step" if found.losses.equal_digits else "different"
        parts.append(
            Text(
                f"losses of {counted(found.losses.steps, 'step')}: {same} "
                f"(largest relative difference {found.losses.max_relative_difference:.1e})"
            )
        )
    return Group(*parts)


def interval_ms(value_s: float, low_s: float, high_s: float) -> str:
    """Write a time with its interval, in milliseconds."""
    return f"{value_s * 1e3:.1f} ms ({low_s * 1e3:.1f} to {high_s * 1e3:.1f})"


def _headline(found: Report) -> RenderableType:
    plan, where = found.plan, f" on {found.device}" if found.device else ""
    line = Text.assemble((f"run {found.run_id}", "bold"), f": {found.state}, {found.steps_done} of {found.steps_asked or '?'} steps")
    line.append(
        f"; {counted(found.ranks, 'rank')}{where}, {plan.get('schedule', '?')}, {plan.get('micro_batches', '?')} micro-batches, "
        f"cuts {plan.get('cuts', '?')}"
    )
    if found.parent:
        line.append(f"; plan from run {found.parent}")
    return Group(line, Text(found.message, style="red")) if found.message else line


def _rates(found: Report) -> RenderableType:
    assert found.step_time is not None
    line = Text(f"step {_interval(found.step_time)} over {counted(found.step_time.samples, 'step')}")
    if found.samples_per_s is not None:
        line.append(f"; {found.samples_per_s:,.1f} samples/s")
    if found.tokens_per_s:
        line.append(f"; {found.tokens_per_s:,.0f} tokens/s")
    if found.loss is not None:
        line.append(f"; loss {found.loss:.4f}")
    if found.bubble is not None:
        own = "" if found.bubble.schedule_ratio is None else f" (the schedule's own: {found.bubble.schedule_ratio:.1%})"
        line.append(f"\nbubble {found.bubble.ratio.median:.1%}{own}")
    return line


def _stages(found: Report) -> RenderableType:
    ranks = [] if all(row.rank == row.stage for row in found.stages) else ["rank"]
    table = _table(
        "stage",
        *ranks,
        "layers",
        "F ms",
        "B ms",
        "ms/step",
        "busy",
        "held",
        "kept",
        "RSS",
        title="stages (kept activations and resident set in MiB)",
    )
    table.columns[1 + len(ranks)].justify = "left"
    slowest = found.verdict.stage if found.verdict is not None else None
    for row in found.stages:
        names = f"{row.layer_names[0]}..{row.layer_names[-1]}" if row.layer_names else f"{row.layers[0]}..{row.layers[1] - 1}"
        table.add_row(
            f"{row.stage}{' <' if row.stage == slowest else ''}",
            *([str(row.rank)] if ranks else []),
            escape(f"{names} ({row.layers[1] - row.layers[0]})"),
            _ms(row.forward.median) if row.forward else "-",
            _ms(row.backward.median) if row.backward else "-",
            _ms(row.compute_s.median),
            f"{row.share:.0%}",
            str(row.in_flight) if row.held in (0, row.in_flight) else f"{row.held} ({row.in_flight})",
            f"{row.activation_bytes / 2**20:,.1f}" if row.activation_bytes else "-",
            f"{row.memory_bytes / 2**20:,.0f}" if row.memory_bytes else "-",
            style="bold" if row.stage == slowest else None,
        )
    return table


def _accounting(found: Report) -> RenderableType:
    states = [s for s in _STATES if any(rank.states.get(s, 0.0) > 0 for rank in found.accounting) or s == "unattributed"]
    table = _table(
        "rank", *(_STATES[s] for s in states), "= wall", title="where a step's time goes: mean ms a rank, share of the wall time"
    )
    for rank in found.accounting:
        table.add_row(str(rank.rank), *(f"{_ms(rank.states[s])}\n{rank.states[s] / rank.wall_s:.1%}" for s in states), _ms(rank.wall_s))
    return table


def _attempt(found: Report) -> RenderableType:
    names = list(found.attempt[0].parts)
    table = _table(
        "rank", *names, "= wall", "unattr.", title="where the attempt's time goes: seconds a rank, and its steps' unattributed share"
    )
    for rank in found.attempt:
        row = (f"{rank.parts[name]:,.2f}" for name in names)
        table.add_row(str(rank.rank), *row, f"{rank.wall_s:,.2f}", f"{rank.unattributed_ratio:.1%}")
    return table


def _links(found: Report) -> RenderableType:
    table = _table("link", "kind", "KiB", "transfer us", "MiB/s", "idle MiB/s", "wait ms", title="links (samples: receives that blocked)")
    table.columns[1].justify = "left"
    table.add_column("samples", justify="right")
    for link in found.links:
        table.add_row(
            f"{link.src_stage}->{link.dst_stage}",
            link.kind,
            f"{link.bytes_per_message / 2**10:,.0f}",
            f"{link.transfer.median * 1e6:,.0f}" if link.transfer else "-",
            _rate(link.throughput.median if link.throughput else None),
            _rate(link.probe_bytes_per_second),
            _ms(link.wait_s_per_step),
            f"{link.samples}/{link.messages}" + (f" ({link.unreliable} unreliable)" if link.unreliable else ""),
        )
    return table


def _clocks(clocks: tuple[RankClock, ...]) -> RenderableType:
    table = _table(
        "rank", "offset s", "+/- us", "readings", "drift us/s", title="clocks: rank 0's minus the rank's; applied to every time above"
    )
    for clock in clocks:
        drift = f"{clock.drift_ratio * 1e6:+.2f}" if clock.drift_ratio is not None else "-"
        table.add_row(str(clock.rank), f"{clock.offset_s:+.6f}", f"{clock.uncertainty_s * 1e6:,.1f}", str(clock.readings), drift)
    return table


def _suggestion(number: int, item: Suggestion, layers: tuple[str, ...]) -> RenderableType:
    head = Text.assemble(
        (f"{number}. cuts {list(item.plan.cuts)}, {item.plan.schedule}, {item.plan.micro_batches} micro-batches", "bold green"),
        f": {interval_ms(item.step_time_s, item.low_s, item.high_s)} a step, {item.gain_ratio:.1%} less; bubble {item.bubble_ratio:.0%}",
    )
    table = _table("stage", "layers now", "layers then", "ms/micro-batch", "then")
    for row in item.stages:
        table.add_row(
            str(row.stage),
            _layer_range(row.layers_before, layers),
            _layer_range(row.layers_after, layers),
            _ms(row.compute_before_s) if row.compute_before_s is not None else "-",
            _ms(row.compute_after_s),
        )
    notes = [item.sentence]
    if item.memory_bytes:
        notes.append(f"memory a rank: {', '.join(f'{size / 2**20:,.0f}' for size in item.memory_bytes)} MiB")
    if item.binding:
        notes.append(f"what binds: {item.binding}")
    return Group(head, *(Padding(Text(note), (0, 0, 0, 3)) for note in notes), Padding(table, (0, 0, 0, 3)))


def _baselines(baselines: Mapping[str, float]) -> RenderableType:
    ways = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in baselines.items())
    return Text(f"other ways to cut would give: {ways}", style="dim")


def _prediction(check: PredictionCheck) -> str:
    p = check.predicted
    place = "inside" if check.within else "outside"
    return (
        f"predicted {interval_ms(p.step_time_s, p.low_s, p.high_s)}, achieved {_interval(check.achieved)}: "
        f"{check.error_ratio:+.1%}, {place} the predicted interval"
    )


def _layer_range(layers: tuple[int, int] | None, names: tuple[str, ...]) -> str:
    if layers is None:
        return "-"
    return escape(f"{names[layers[0]]}..{names[layers[1] - 1]} ({layers[1] - layers[0]})")


def _table(*columns: str, title: str | None = None) -> Table:
    table = Table(*columns, box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns:
        column.justify, column.no_wrap = "right", True
    table.columns[0].justify = "left"
    return table


def _interval(value: Interval) -> str:
    return interval_ms(value.median, value.low, value.high)


def _range(value: Interval, *, sign: str = "") -> str:
    return f"{value.low * 1e3:{sign},.1f} to {value.high * 1e3:{sign},.1f}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}"


def _rate(bytes_per_second: float | None) -> str:
    return f"{bytes_per_second / 2**20:,.0f}" if bytes_per_second else "-"
