"""Every schedule with every size it takes, for tests that must hold for all of them."""

from hypothesis import strategies as st

from pptoolkit.schedule import FORWARD_ONLY, SCHEDULES, Schedule, build_schedule

LOOPED = ("interleaved-1f1b", "looped-bfs", "interleaved-zb")
V_SHAPED = ("zbv", "dualpipev")
TRAINING = tuple(name for name in SCHEDULES if name != FORWARD_ONLY)


def stages_per_rank(name: str) -> tuple[int, ...]:
    if name in LOOPED:
        return (2, 3, 4)
    if name == FORWARD_ONLY:
        return (1, 2)
    return (2,) if name in V_SHAPED else (1,)


@st.composite
def schedules(draw: st.DrawFn, names: tuple[str, ...] = SCHEDULES, *, most_ranks: int = 7, most_micro_batches: int = 24) -> Schedule:
    name = draw(st.sampled_from(names))
    ranks = draw(st.integers(1, most_ranks))
    stages = ranks * draw(st.sampled_from(stages_per_rank(name)))
    return build_schedule(name, ranks=ranks, stages=stages, micro_batches=draw(st.integers(1, most_micro_batches)))
