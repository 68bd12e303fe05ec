"""A plan of the person's own on the Rebalance page: cuts dragged or typed, another schedule, other micro-batches."""

import streamlit as st

from dashboard.components.cuts import cut_strip, dragged_cuts
from dashboard.cuts import read_cuts
from dashboard.data import WatchedRun
from dashboard.frame import say, section
from dashboard.scenario import Scenario, best_cuts, fitting_schedules, own_scenario
from pptoolkit.errors import PPToolkitError
from pptoolkit.planner.predict import PredictedStep
from pptoolkit.planner.step_costs import MeasuredStep


def own_plan(run: WatchedRun, measured: MeasuredStep) -> Scenario | None:
    """Let the person drag or type cuts and choose a schedule and micro-batches; None while nothing differs from the run."""
    plan, name, layers = measured.plan, run.name, len(measured.layers.layers)
    schedules = fitting_schedules(measured.ranks, layers, plan.micro_batches)
    section("Your own", "Drag the bars between the stages, move them with the arrow keys, or type; the simulation follows at once.")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        names = list(dict.fromkeys([plan.schedule, *schedules]))
        schedule = st.selectbox("Schedule", names, key=f"own-schedule-{name}", width=220)
        stages = plan.stages if schedule == plan.schedule else schedules[schedule]
        micro_batches = st.number_input("Micro-batches", 1, 4096, plan.micro_batches, key=f"own-micro-{name}", width=150)
        text = st.text_input(
            "Cuts: the layer that begins each next stage",
            key=f"cuts-{name}",
            placeholder=", ".join(map(str, best_cuts(measured, stages))),
            width=280,
            on_change=_typed,
            args=(name,),
        )
    try:
        cuts = _current_cuts(name, text, best_cuts(measured, stages), layers)
        if len(cuts) + 1 != stages:
            raise ValueError(f"{schedule} on {measured.ranks} ranks needs {stages} stages, so {stages - 1} cuts; there are {len(cuts)}")
        plan.evolve(cuts=cuts).check(layers)
    except (ValueError, PPToolkitError) as error:
        say(":material/edit_off:", "These cuts do not work:", str(error))
        return None
    cut_strip(
        [layer.name for layer in measured.layers.layers],
        [1e3 * s for s in measured.layers.compute_s],
        cuts,
        token=f"{schedule}/{st.session_state.get(f'typed-{name}', 0)}",
        key=f"strip-{name}-{stages}",
        on_change=lambda: st.session_state.update({f"dragged-{name}": True}),
    )
    own = Scenario(cuts=cuts, schedule=schedule, micro_batches=int(micro_batches))
    return own if own != own_scenario(measured) else None


def _typed(name: str) -> None:
    st.session_state[f"typed-{name}"] = st.session_state.get(f"typed-{name}", 0) + 1
    st.session_state[f"dragged-{name}"] = False


def _current_cuts(name: str, text: str | None, usual: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Return what was dragged or typed, whichever was last."""
    dragged = dragged_cuts(f"strip-{name}-{len(usual) + 1}", layers)
    if dragged is not None and st.session_state.get(f"dragged-{name}"):
        return dragged
    return read_cuts(text) if text and text.strip() else usual


def predict_own(run: WatchedRun, measured: MeasuredStep, scenario: Scenario | None) -> PredictedStep | None:
    """Return the prediction for the person's own plan; None where the planner makes none (other micro-batches, a replay that misses)."""
    predictor = run.predictor()
    if scenario is None or predictor is None:
        return None
    try:
        plan = measured.plan.evolve(cuts=scenario.cuts, schedule=scenario.schedule, micro_batches=scenario.micro_batches)
        return predictor.predict(plan)
    except PPToolkitError as error:
        st.caption("No interval is predicted for your own plan; it is simulated all the same.")
        st.text(str(error))
        return None
