"""Costs drawn at random, and a second simulator, slow and written another way, to hold the real one against."""

from hypothesis import strategies as st

from pptoolkit.schedule import Action, ActionKind, Schedule
from pptoolkit.simulator import Costs

COMPUTE = (ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)
# Whole 64ths of a second: sums are exact in binary, so equal is equal.
seconds = st.integers(0, 256).map(lambda n: n / 64)


@st.composite
def costs_for(draw: st.DrawFn, schedule: Schedule, *, joined_end: bool | None = None) -> Costs:
    stages, ranks = range(schedule.stages), range(schedule.ranks)
    borders = [(s, s + 1) for s in stages[:-1]] + [(s + 1, s) for s in stages[:-1]]
    actions = [action for order in schedule.orders for action in order]
    return Costs(
        op_s={(s, kind): draw(seconds) for s in stages for kind in COMPUTE},
        overrides=draw(st.dictionaries(st.sampled_from(actions), seconds, max_size=3)),
        transfer_s={border: draw(seconds) for border in borders},
        transfer_overrides=draw(st.dictionaries(st.sampled_from(actions), seconds, max_size=2)),
        send_s=draw(seconds),
        recv_s=draw(seconds),
        action_overhead_s=draw(seconds),
        before_s={r: draw(seconds) for r in ranks},
        after_s={r: draw(seconds) for r in ranks},
        joined_end=draw(st.booleans()) if joined_end is None else joined_end,
    )


def reference_ends(schedule: Schedule, costs: Costs) -> dict[Action, float]:
    """Return when each action of a first step ends: the least times that keep every rule, found by raising them until they all do."""
    end = dict.fromkeys((action for order in schedule.orders for action in order), 0.0)
    arrival = dict(end)
    while True:
        before = (dict(end), dict(arrival))
        for rank, order in enumerate(schedule.orders):
            free, link_free = costs.before_s.get(rank, 0.0), dict.fromkeys(costs.transfer_s, 0.0)
            for action in order:
                now = free + costs.action_overhead_s
                source = _neighbour(schedule, action, towards_input=True)
                if source is not None and schedule.stage_to_rank[source.stage] == rank:
                    now = max(now, end[source])
                elif source is not None:
                    now = max(now, arrival[source]) + costs.recv_s
                end[action] = free = now + costs.overrides.get(action, costs.op_s[action.stage, action.kind])
                target = _neighbour(schedule, action, towards_input=False)
                if target is not None and schedule.stage_to_rank[target.stage] != rank:
                    free += costs.send_s
                    border = (action.stage, target.stage)
                    link_free[border] = max(free, link_free[border]) + costs.transfer_overrides.get(action, costs.transfer_s[border])
                    arrival[action] = link_free[border]
        if before == (end, arrival):
            return end


def _neighbour(schedule: Schedule, action: Action, *, towards_input: bool) -> Action | None:
    """The action of a neighbouring stage that makes this one's input, or takes its output."""
    if action.kind is ActionKind.BACKWARD_WEIGHT:
        return None
    step = -1 if (action.kind is ActionKind.FORWARD) == towards_input else 1
    stage = action.stage + step
    if not 0 <= stage < schedule.stages:
        return None
    kinds = {ActionKind.FORWARD} if action.kind is ActionKind.FORWARD else {ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT}
    order = schedule.orders[schedule.stage_to_rank[stage]]
    return next(a for a in order if (a.stage, a.micro_batch) == (stage, action.micro_batch) and a.kind in kinds)
