"""One run as one file: the timeline that can be zoomed, and the report, without a server and without a network. Imports no Streamlit."""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from dashboard.charts.numbers import duration, number, percent, size
from dashboard.charts.palette import STATE_COLORS, STATE_LABELS, ink_on
from dashboard.components.gantt.source import source
from dashboard.recuts import cut_marks
from dashboard.timeline_message import Jump, Panel, Scene, build_message
from dashboard.view_state import ViewState
from dashboard.window import lanes_of
from pptoolkit.errors import RunError
from pptoolkit.planner.report import Report
from pptoolkit.run import Run

MOST_EVENTS = 150_000  # of the newest steps; the file stays small enough for a mail
WIDTH_PX = 6000  # the pixels that events are reduced to: finer than a screen, so that zooming in still shows more

_STYLE = """
:root { color-scheme: light dark; --st-background-color: #ffffff; --st-secondary-background-color: #f3f5f7; --st-text-color: #1f2328;
  --st-border-color: #c9ced6; --st-primary-color: #0072b2; --st-font: system-ui, sans-serif; }
@media (prefers-color-scheme: dark) { :root { --st-background-color: #14171b; --st-secondary-background-color: #20252b;
  --st-text-color: #e6e8eb; --st-border-color: #3c434c; } }
body { margin: 0 auto; padding: 24px 32px 60px; max-width: 1500px; background: var(--st-background-color); color: var(--st-text-color);
  font: 14px/1.5 system-ui, sans-serif; }
h1 { font-size: 22px; margin: 0 0 2px; } h2 { font-size: 16px; margin: 32px 0 6px; } p { margin: 4px 0; } .soft { opacity: 0.66; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } th { text-align: left; font-weight: 600; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid var(--st-border-color); } td.n, th.n { text-align: right; }
.numbers { display: flex; flex-wrap: wrap; gap: 4px 28px; margin: 10px 0 18px; }
.split { display: flex; height: 24px; border-radius: 3px; overflow: hidden; }
.split span { font-size: 11px; font-weight: 600; text-align: center; line-height: 24px; overflow: hidden; }
.row { display: grid; grid-template-columns: 150px 1fr; gap: 10px; align-items: center; margin: 5px 0; }
.key { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 12px; margin: 8px 0 4px; }
.key i { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 6px; vertical-align: -1px; }
"""


def write_page(run: Run, path: Path) -> None:
    """Write the run to one self-contained HTML file.

    Raises:
        RunError: If the file cannot be written.
    """
    run.poll()
    text = page_text(run)
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}; choose a writable place with -o") from error


def page_text(run: Run) -> str:
    """Return the HTML. Everything that comes from files is escaped."""
    report, name = run.report(), escape(run.info.run_id)
    scene = newest_scene(run)
    parts = [f"<h1>{name}</h1>", f'<p class="soft">{escape(_plan_words(report))}</p>', _numbers(report)]
    if report.verdict is not None:
        parts.append(f"<p>{escape(_sentence(report.verdict.evidence))}</p>")
    parts += [f"<p>{escape(_sentence(f'cut anew before {one.sentence}'))}</p>" for one in report.segments if one.sentence]
    parts += [f'<p class="soft">{escape(_sentence(text))}</p>' for text in report.missing]
    parts.append(_gantt(scene) if scene is not None else "<p>No rank has finished a step, so there is no timeline.</p>")
    parts += [_accounting(report), _stages(report), _links(report)]
    return _document(name, "".join(parts))


def standalone_page(name: str, message: bytes) -> str:
    """Return a page that holds nothing but the canvas with ``message``."""
    return _document(escape(name), _canvas(message))


def _document(name: str, body: str) -> str:
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><meta name="viewport" content="width=device-width">'
        f"<title>{name}: pptoolkit</title><style>{_STYLE}{source().css}</style></head><body>{body}</body></html>\n"
    )


def newest_scene(run: Run) -> Scene | None:
    """Return the newest steps, as many as :data:`MOST_EVENTS` hold."""
    steps = run.steps().sort_values("start_ns", ignore_index=True)
    if steps.empty:
        return None
    per_step = max(run.events.num_rows / len(steps), 1.0)
    shown = steps.tail(max(1, int(MOST_EVENTS / per_step)))
    lanes = lanes_of(run.info.stage_to_rank, ranks=run.info.ranks)
    timeline = run.timeline((int(shown["step"].min()), int(shown["step"].max()) + 1))
    return Scene(timeline=timeline, steps=shown.reset_index(drop=True), lanes=lanes, silent=run.silent_ranks, cuts=cut_marks(run.info))


def _gantt(scene: Scene) -> str:
    """Return the canvas with all that it can show, so that its buttons need nobody to ask."""
    span_us = (scene.end_ns - scene.start_ns) / 1e3
    jump = Jump(token="file", window_us=(0.0, span_us))
    everything = ViewState(from_us=0.0, to_us=span_us, follow=False, width_px=WIDTH_PX, jump="file", path=True, gaps="doing")
    message = build_message(scene, everything, jump, panel=Panel(closed=True))
    first, last = int(scene.steps["step"].iloc[0]), int(scene.steps["step"].iloc[-1])
    return (
        f"<h2>Timeline</h2><p class='soft'>Steps {first} to {last}. Each row is a rank, each bar one op of one micro-batch; "
        f"hatched is a bubble: the rank could compute and does not.</p>" + _canvas(message)
    )


def _canvas(message: bytes) -> str:
    made = source()
    script = made.script.replace("export default function", "function mount")
    data = base64.b64encode(message).decode()
    return (
        f'<div id="timeline">{made.html}</div><script type="module">{script}\n'
        f'const bytes = Uint8Array.from(atob("{data}"), (c) => c.charCodeAt(0));\n'
        'const parent = document.getElementById("timeline");\n'
        "mount({ data: bytes, parentElement: parent, setStateValue: () => {} });</script>"
    )


def _plan_words(report: Report) -> str:
    plan = report.plan
    cuts = ", ".join(map(str, plan.get("cuts", []))) or "none"
    return f"{report.ranks} ranks, {plan.get('schedule', '')}, {plan.get('micro_batches', '')} micro-batches, cuts {cuts}; {report.state}"


def _numbers(report: Report) -> str:
    items = [
        ("steps", f"{report.steps_done} of {report.steps_asked}" if report.steps_asked else str(report.steps_done)),
        ("loss", number(report.loss)),
        ("step time", duration(report.step_time.median) if report.step_time else "–"),
        ("bubble", percent(report.bubble.ratio.median) if report.bubble else "–"),
        ("the schedule's own", percent(report.bubble.schedule_ratio) if report.bubble else "–"),
        ("samples/s", f"{report.samples_per_s:,.0f}" if report.samples_per_s else "–"),
    ]
    return '<div class="numbers">' + "".join(f'<span><span class="soft">{k}</span> <b>{escape(v)}</b></span>' for k, v in items) + "</div>"


def _accounting(report: Report) -> str:
    if not report.accounting:
        return ""
    longest = max(account.wall_s for account in report.accounting)
    rows, used = [], set()
    for account in report.accounting[:256]:
        bars = []
        for state, label in STATE_LABELS.items():
            share = account.states.get(state, 0.0) / longest
            if share <= 0:
                continue
            used.add(state)
            color = STATE_COLORS[state]
            text = percent(account.states[state] / account.wall_s) if share > 0.05 else ""
            style = f"width:{100 * share:.3f}%;background:{color};color:{ink_on(color)}"
            bars.append(f'<span style="{style}" title="{label}: {duration(account.states[state])}">{text}</span>')
        rows.append(f'<div class="row"><span>rank {account.rank}</span><div class="split">{"".join(bars)}</div></div>')
    key = "".join(f'<span><i style="background:{STATE_COLORS[s]}"></i>{label}</span>' for s, label in STATE_LABELS.items() if s in used)
    return f'<h2>Time of a step, rank by rank</h2><div class="key">{key}</div>{"".join(rows)}'


def _stages(report: Report) -> str:
    rows = [
        (
            str(stage.stage),
            str(stage.rank),
            f"{stage.layer_names[0]} … {stage.layer_names[-1]} ({len(stage.layer_names)})" if stage.layer_names else "–",
            duration(stage.forward.median) if stage.forward else "–",
            duration(stage.backward.median) if stage.backward else "–",
            duration(stage.compute_s.median),
            percent(stage.share),
            size(stage.memory_bytes) if stage.memory_bytes else "not measured",
        )
        for stage in report.stages
    ]
    head = ("stage", "rank", "layers", "forward", "backward", "compute a step", "busy", "memory peak")
    return _table("Stages", head, rows, words=(2,)) if rows else ""


def _links(report: Report) -> str:
    rows = [
        (
            f"{link.src_stage} → {link.dst_stage}",
            link.kind,
            size(link.bytes_per_message),
            f"{size(link.throughput.median)}/s" if link.throughput else "no reliable sample",
            f"{size(link.probe_bytes_per_second)}/s" if link.probe_bytes_per_second else "not probed",
            duration(link.wait_s_per_step),
        )
        for link in report.links
    ]
    head = ("stages", "what", "message", "throughput", "idle link", "waiting for the sender, a step")
    return _table("Links", head, rows, words=(0, 1)) if rows else ""


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, words: Sequence[int]) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(f"<{tag}{'' if i in words else ' class=n'}>{escape(text)}</{tag}>" for i, text in enumerate(row))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<h2>{title}</h2><table><tr>{cells('th', head)}</tr>{body}</table>"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
