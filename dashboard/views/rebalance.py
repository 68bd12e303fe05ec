"""Rebalance: today's cuts and better ones on the layer strip, the predicted step time, and a button that writes the next plan."""

import shlex
from collections.abc import Mapping

import streamlit as st

from dashboard.charts.intervals import StepTime, interval_chart
from dashboard.charts.numbers import duration, percent
from dashboard.charts.strip import strip_chart, strip_rows
from dashboard.data import WatchedRun
from dashboard.frame import choose_run, ink, refresh, refresh_every, say, say_waiting, section
from pptoolkit.analysis.statistics import Interval
from pptoolkit.errors import PPToolkitError
from pptoolkit.plan import Plan
from pptoolkit.planner.predict import PredictedStep, Predictor
from pptoolkit.planner.step_costs import MeasuredStep
from pptoolkit.planner.suggest import NoChange, Suggestion, Suggestions
from pptoolkit.telemetry import RunInfo

WHAT = "Each box is a layer, as wide as it is costly. A step is as fast as its slowest stage, so good cuts make the stages alike."
BASELINE_LABELS = {"uniform": "same number of layers", "by_parameters": "same number of parameters"}


def page() -> None:
    run = choose_run("Rebalance", WHAT)
    if run is not None:
        st.fragment(_live, run_every=2 * refresh_every(run))(run)


def _live(run: WatchedRun) -> None:
    if not refresh(run):
        return
    measured, found = run.measured_step(), run.suggestions()
    if measured is None:
        say_waiting(run, "There are no complete steps to plan from yet.")
        if found.no_change is not None:
            st.text(found.no_change.reason)
        return
    headline, strip = st.container(), st.container()  # drawn above the field, but they show what is typed into it
    own = _own_cuts(run, measured)
    plans: dict[str, tuple[int, ...]] = {f"now: cuts {_list(measured.plan)}": measured.plan.cuts}
    with headline:
        if len(found):
            _show_suggestion(found[0], found)
            plans[f"suggested: cuts {_list(found[0].plan)}"] = found[0].plan.cuts
        else:
            _show_no_change(found.no_change or NoChange(reason="nothing was found", conclusive=False), found)
    if own is not None and own.plan.cuts not in plans.values():
        plans[f"yours: cuts {_list(own.plan)}"] = own.plan.cuts
    names = [layer.name for layer in measured.layers.layers]
    strip.altair_chart(strip_chart(*strip_rows(names, measured.layers.compute_s, plans), ink=ink()), key="strip")
    section("Step time: measured, and what the simulator predicts")
    st.altair_chart(interval_chart(step_times(measured, found, own)), key="intervals")
    _apply(run, _to_apply(run.info, measured, found, own))


def _list(plan: Plan) -> str:
    return ", ".join(map(str, plan.cuts)) or "none"


def _own_cuts(run: WatchedRun, measured: MeasuredStep) -> PredictedStep | None:
    """Let the person type cuts of their own, and predict them."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.text("Try cuts of your own", width="content")
        text = st.text_input(
            "Your cuts",
            key=f"cuts-{run.name}",
            placeholder=", ".join(map(str, measured.plan.cuts)),
            label_visibility="collapsed",
            width=180,
        )
        st.markdown(
            f":gray[each number is the layer that begins the next stage; the model has {len(measured.layers.layers)} layers]",
            width="content",
        )
    if not text or not text.strip():
        return None
    try:
        cuts = read_cuts(text)
        plan = measured.plan.evolve(cuts=cuts)
        plan.check(len(measured.layers.layers))
        return Predictor(measured).predict(plan)
    except (ValueError, PPToolkitError) as error:
        say(":material/edit_off:", "These cuts do not work:", str(error))
        return None


def read_cuts(text: str) -> tuple[int, ...]:
    """Read ``"3, 6 9"`` or ``"[3, 6, 9]"``.

    Raises:
        ValueError: If there is something else than whole numbers.
    """
    words = text.replace("[", " ").replace("]", " ").replace(",", " ").split()
    wrong = [word for word in words if not (word.isascii() and word.isdigit())]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is no whole number; write the cuts like 3, 6, 9")
    return tuple(int(word) for word in words)


def step_times(measured: MeasuredStep, found: Suggestions, own: PredictedStep | None) -> list[StepTime]:
    """Return the rows of the interval chart: measured first, then what is predicted, then other ways of cutting."""
    rows = [_row("this run, measured", "measured", measured.step_time)]
    if len(found):
        best = found[0]
        rows.append(
            StepTime(label="suggested cuts, predicted", kind="predicted", seconds=best.step_time_s, low_s=best.low_s, high_s=best.high_s)
        )
    if own is not None:
        rows.append(StepTime(label="your cuts, predicted", kind="predicted", seconds=own.step_time_s, low_s=own.low_s, high_s=own.high_s))
    baselines: Mapping[str, float] = found.baselines
    rows += [
        StepTime(label=f"{BASELINE_LABELS.get(name, name)}, predicted", kind="others", seconds=s, low_s=s, high_s=s)
        for name, s in baselines.items()
    ]
    return rows


def _row(label: str, kind: str, interval: Interval) -> StepTime:
    return StepTime(label=label, kind=kind, seconds=interval.median, low_s=interval.low, high_s=interval.high)


def _show_suggestion(best: Suggestion, found: Suggestions) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.badge(f"{percent(best.gain_ratio)} less time per step", icon=":material/trending_up:", color="green")
        st.markdown(f":gray[now] **{duration(found.step_time_s)}**", width="content")
        st.markdown(
            f":gray[predicted] **{duration(best.step_time_s)}** :gray[({duration(best.low_s)} to {duration(best.high_s)})]", width="content"
        )
        st.markdown(f":gray[bubble then] **{percent(best.bubble_ratio)}**", width="content")
        if found.replay_error_ratio is not None:
            st.markdown(f":gray[replay of this run is off by] **{percent(abs(found.replay_error_ratio))}**", width="content")
    st.text(best.sentence[:1].upper() + best.sentence[1:] + ".")


def _show_no_change(no_change: NoChange, found: Suggestions) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        if no_change.conclusive:
            st.badge("no change: the cuts are good as they are", icon=":material/check:", color="green")
        else:
            st.badge("no advice yet", icon=":material/hourglass_empty:", color="gray")
        if found.step_time_s is not None:
            st.markdown(f":gray[step time] **{duration(found.step_time_s)}**", width="content")
    reason = no_change.reason.removeprefix("no change: ")
    st.text(reason[:1].upper() + reason[1:] + ".")


def _to_apply(info: RunInfo, measured: MeasuredStep, found: Suggestions, own: PredictedStep | None) -> dict[str, Plan]:
    """Return the plans that can be written, by what their button says."""
    plans = {"Apply to next run": found[0].plan} if len(found) else {}
    if own is not None and own.plan.cuts != measured.plan.cuts:
        prediction = own.as_prediction(baseline_step_time_s=measured.step_time.median)
        plans["Apply your cuts"] = own.plan.evolve(fingerprint=info.fingerprint, prediction=prediction)
    return plans


def _apply(run: WatchedRun, plans: dict[str, Plan]) -> None:
    if not plans:
        return
    target = run.path / "next-plan.toml"
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        for label, plan in plans.items():
            first = label == next(iter(plans))
            if st.button(label, key=f"apply-{label}", type="primary" if first else "secondary", icon=":material/save:"):
                st.session_state["applied"] = _write(run.name, plan, target)
        st.text(f"writes {target}", width="content")
    run_name, cuts, error = st.session_state.get("applied", ("", (), ""))
    if run_name != run.name:
        return
    if error:
        say(":material/error:", "The plan was not written:", error)
        return
    st.success(f"The plan with cuts {', '.join(map(str, cuts))} is written. Train with it, from the same seed:", icon=":material/check:")
    st.code(next_command(run.info, str(target)), language="bash")


def _write(name: str, plan: Plan, target: object) -> tuple[str, tuple[int, ...], str]:
    try:
        plan.save(str(target))
    except PPToolkitError as error:
        return name, plan.cuts, str(error)
    return name, plan.cuts, ""


def next_command(info: RunInfo, plan_path: str) -> str:
    """Return the command that trains with the plan: the run's own config, if its command names one."""
    words = list(info.command)
    after = words[words.index("train") + 1 :] if "train" in words else []
    config = next((word for word in after if word.endswith(".toml") and not word.startswith("-")), "CONFIG")
    return f"pptoolkit train {shlex.quote(config)} --plan {shlex.quote(plan_path)}"
