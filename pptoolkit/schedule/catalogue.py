"""The schedules by name: from what a plan says to a list of actions for each rank."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pptoolkit.errors import PlanError, ScheduleError, counted
from pptoolkit.schedule.actions import Order, Schedule
from pptoolkit.schedule.dualpipev import dualpipev_orders
from pptoolkit.schedule.forward_only import FORWARD_ONLY, forward_orders
from pptoolkit.schedule.gpipe import gpipe_orders
from pptoolkit.schedule.interleaved import interleaved_orders, interleaved_zero_bubble_orders
from pptoolkit.schedule.looped_bfs import looped_bfs_orders
from pptoolkit.schedule.one_f_one_b import one_f_one_b_orders
from pptoolkit.schedule.placement import looped_placement, v_placement
from pptoolkit.schedule.table import load_csv
from pptoolkit.schedule.zb_h1 import zb_h1_orders
from pptoolkit.schedule.zbv import zbv_orders


@dataclass(frozen=True, slots=True)
class _Entry:
    generate: Callable[[int, int, int], tuple[Order, ...]]  # (ranks, stages, micro_batches) -> orders
    layout: "_Layout"


@dataclass(frozen=True, slots=True)
class _Layout:
    place: Callable[[int, int], tuple[int, ...]]  # (ranks, stages) -> rank of each stage
    fits: Callable[[int, int], bool]  # (stages, ranks)
    need: str  # what fits() asks, in words
    least: int  # stages a rank, at least


_PLAIN = _Layout(looped_placement, lambda stages, ranks: stages == ranks, "one stage on each rank", 1)
_LOOPED = _Layout(
    looped_placement, lambda stages, ranks: stages % ranks == 0 and stages > ranks, "two or more stages on each rank, as many on each", 2
)
_V = _Layout(lambda ranks, _: v_placement(ranks), lambda stages, ranks: stages == 2 * ranks, "two stages on each rank", 2)
_ANY = _Layout(looped_placement, lambda stages, ranks: stages % ranks == 0, "the same number of stages on each rank", 1)


def _plain(orders: Callable[[int, int], tuple[Order, ...]]) -> Callable[[int, int, int], tuple[Order, ...]]:
    return lambda ranks, _, micro_batches: orders(ranks, micro_batches)


_ENTRIES: Mapping[str, _Entry] = MappingProxyType(
    {
        "gpipe": _Entry(_plain(gpipe_orders), _PLAIN),
        "1f1b": _Entry(_plain(one_f_one_b_orders), _PLAIN),
        "interleaved-1f1b": _Entry(interleaved_orders, _LOOPED),
        "looped-bfs": _Entry(looped_bfs_orders, _LOOPED),
        "zb-h1": _Entry(_plain(zb_h1_orders), _PLAIN),
        "interleaved-zb": _Entry(interleaved_zero_bubble_orders, _LOOPED),
        "zbv": _Entry(_plain(zbv_orders), _V),
        "dualpipev": _Entry(_plain(dualpipev_orders), _V),
        FORWARD_ONLY: _Entry(lambda ranks, stages, m: forward_orders(looped_placement(ranks, stages), m), _ANY),
    }
)
SCHEDULES: tuple[str, ...] = tuple(_ENTRIES)
TRAINING_SCHEDULES: tuple[str, ...] = tuple(name for name in SCHEDULES if name != FORWARD_ONLY)


def build_schedule(name: str, *, ranks: int, micro_batches: int, stages: int | None = None) -> Schedule:
    """Return the schedule that a plan names, for one replica.

    Args:
        name: One of :data:`SCHEDULES`, or the path of a CSV file (it ends in ``.csv``).
        ranks: Pipeline ranks.
        micro_batches: Micro-batches per step.
        stages: Stages of the model; None: as many as the schedule needs at least.

    Raises:
        ScheduleError: If the name is unknown (the message suggests the nearest), or the file holds no schedule that can run.
        PlanError: If the stages do not fit the ranks, or a number is below 1.
    """
    for label, value in (("ranks", ranks), ("micro_batches", micro_batches), ("stages", 1 if stages is None else stages)):
        if value < 1:
            raise PlanError(f"{label}={value} is too small for schedule {name!r}; use 1 or more")
    if name.endswith(".csv"):
        return _from_file(name, ranks, micro_batches, stages)
    entry = _find(name)
    layout = entry.layout
    stages = ranks * layout.least if stages is None else stages
    if not layout.fits(stages, ranks):
        raise PlanError(
            f"schedule {name!r} needs {layout.need}, but there {'is' if stages == 1 else 'are'} {counted(stages, 'stage')} "
            f"for {counted(ranks, 'rank')}; {_stages_remedy(name, stages, ranks)}"
        )
    return Schedule(
        name=name,
        micro_batches=micro_batches,
        stage_to_rank=layout.place(ranks, stages),
        orders=entry.generate(ranks, stages, micro_batches),
    )


def check_trains(name: str) -> None:
    """Refuse a name that is no schedule to train with; a CSV file is looked at only when it is built.

    Raises:
        ScheduleError: If the name is unknown (the message suggests the nearest).
        PlanError: If the schedule has no backward.
    """
    if name == FORWARD_ONLY:
        raise PlanError(f"schedule {FORWARD_ONLY!r} has no backward and trains nothing; choose one of {', '.join(TRAINING_SCHEDULES)}")
    if not name.endswith(".csv"):
        _find(name)


def _find(name: str) -> _Entry:
    if name not in _ENTRIES:
        near = difflib.get_close_matches(name.lower(), TRAINING_SCHEDULES, n=1, cutoff=0.4)
        guess = f"did you mean {near[0]!r}? " if near else ""
        known = ", ".join(TRAINING_SCHEDULES)
        raise ScheduleError(f"schedule {name!r} is unknown; {guess}The schedules are {known}, or the path of a CSV file")
    return _ENTRIES[name]


def _from_file(path: str, ranks: int, micro_batches: int, stages: int | None) -> Schedule:
    schedule = load_csv(path)
    for label, found, asked in (
        ("ranks", schedule.ranks, ranks),
        ("micro-batches", schedule.micro_batches, micro_batches),
        ("stages", schedule.stages, stages),
    ):
        if asked is not None and found != asked:
            raise PlanError(f"{path} is a schedule for {found} {label}, but the plan has {asked}; use {found} {label}, or another schedule")
    return schedule


def _stages_remedy(name: str, stages: int, ranks: int) -> str:
    layout = _ENTRIES[name].layout
    least = ranks * layout.least
    other = [n for n in TRAINING_SCHEDULES if _ENTRIES[n].layout.fits(stages, ranks)]
    choices = [f"use {counted(least - 1, 'cut point')} for {counted(least, 'stage')}" if least > 1 else "use no cut points"]
    if layout.least == 1:
        choices.append(f"start {counted(stages, 'rank')}")
    if other:
        choices.append(f"choose schedule {other[0]!r}")
    return ", or ".join(choices)
