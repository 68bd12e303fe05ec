"""The validator: refuses a schedule that is incomplete, out of order or would deadlock, before any process starts. Pure."""

from collections.abc import Sequence

from pptoolkit.errors import ScheduleError, counted
from pptoolkit.schedule.actions import Action, ActionKind, Order, Schedule
from pptoolkit.schedule.dependencies import order_actions
from pptoolkit.schedule.forward_only import FORWARD_ONLY

_F, _B, _I, _W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT
_AFTER: dict[ActionKind, frozenset[ActionKind]] = {  # what a cell (stage, micro-batch) must have done before, exactly
    _F: frozenset(),
    _B: frozenset({_F}),
    _I: frozenset({_F}),
    _W: frozenset({_F, _I}),
}
_COMPLETE = (frozenset({_F, _B}), frozenset({_F, _I, _W}))


def validate(schedule: Schedule, *, max_in_flight: int | Sequence[int] | None = None) -> None:
    """Check that a schedule can run and does all its work.

    Complete: every stage runs every micro-batch's F once, and its B, or its I and W, once (a schedule named ``"forward"``: F only).
    Ordered: F before B and I, I before W, on the rank that owns the stage. Deadlock-free: run in sequence, every rank reaches its end.

    Args:
        schedule: The schedule; its orders hold compute actions only.
        max_in_flight: Micro-batches that a stage may hold activations of, for all stages or for each.

    Raises:
        ScheduleError: Naming the first wrong action, its rank and position (counted from 0), and the remedy.
    """
    _check_placement(schedule)
    for rank, order in enumerate(schedule.orders):
        _check_order(schedule, rank, order)
    order_actions(schedule)
    if max_in_flight is not None:
        limits = [max_in_flight] * schedule.stages if isinstance(max_in_flight, int) else list(max_in_flight)
        if len(limits) != schedule.stages:
            raise ScheduleError(
                f"max_in_flight has {len(limits)} entries for {counted(schedule.stages, 'stage')}; give one number, or one for each stage"
            )
        for rank, order in enumerate(schedule.orders):
            _check_in_flight(rank, order, limits)


def _check_placement(schedule: Schedule) -> None:
    if schedule.micro_batches < 1 or not schedule.orders or not schedule.stage_to_rank:
        raise ScheduleError(
            f"schedule {schedule.name!r} has {counted(schedule.micro_batches, 'micro-batch')}, {counted(schedule.stages, 'stage')} "
            f"and {counted(schedule.ranks, 'rank')}; it needs at least one of each"
        )
    for stage, rank in enumerate(schedule.stage_to_rank):
        if not 0 <= rank < schedule.ranks:
            raise ScheduleError(
                f"stage {stage} is placed on rank {rank}, but the schedule has ranks 0 to {schedule.ranks - 1}; place it on one of these"
            )
    for rank in range(schedule.ranks):
        if rank not in schedule.stage_to_rank:
            raise ScheduleError(f"rank {rank} owns no stage; give it one, or use fewer ranks")


def _check_order(schedule: Schedule, rank: int, order: Order) -> None:
    done: dict[tuple[int, int], frozenset[ActionKind]] = {}
    for position, action in enumerate(order):
        fault = _fault(schedule, rank, action, done.get((action.stage, action.micro_batch), frozenset()))
        if fault:
            raise ScheduleError(f"rank {rank}, position {position}: {fault}")
        cell = (action.stage, action.micro_batch)
        done[cell] = done.get(cell, frozenset()) | {action.kind}
    for stage in schedule.stages_of(rank):
        for m in range(schedule.micro_batches):
            _check_complete(schedule, rank, stage, m, done.get((stage, m), frozenset()))


def _fault(schedule: Schedule, rank: int, action: Action, done: frozenset[ActionKind]) -> str:
    """Say what is wrong with an action after what its cell has ``done``; an empty string if nothing is."""
    if not action.kind.is_compute:
        return f"{action} is communication, which is derived from the compute actions; leave only F, B, I and W in the order"
    if not 0 <= action.stage < schedule.stages:
        return f"{action} names stage {action.stage}, but there are stages 0 to {schedule.stages - 1}"
    if not 0 <= action.micro_batch < schedule.micro_batches:
        return f"{action} names micro-batch {action.micro_batch}, but there are micro-batches 0 to {schedule.micro_batches - 1}"
    owner = schedule.stage_to_rank[action.stage]
    if owner != rank:
        return f"{action} belongs to stage {action.stage}, which rank {owner} owns; move it to rank {owner}"
    if schedule.name == FORWARD_ONLY and action.kind is not _F:
        return (
            f"{action} is a backward action in a forward-only schedule; remove it, or give the schedule another name than {FORWARD_ONLY!r}"
        )
    if action.kind in done:
        return f"{action} runs a second time; remove one of the two"
    if done == _AFTER[action.kind]:
        return ""
    missing = [kind for kind in (_F, _I) if kind in _AFTER[action.kind] and kind not in done]
    if missing and not (missing[0] is _I and _B in done):
        first = Action(action.stage, missing[0], action.micro_batch)
        return f"{action} runs before {first}; move {first} before it"
    return f"{action} repeats part of a backward that has begun otherwise; a micro-batch has B, or I and W; keep one form"


def _check_complete(schedule: Schedule, rank: int, stage: int, micro_batch: int, done: frozenset[ActionKind]) -> None:
    if done in _COMPLETE or (schedule.name == FORWARD_ONLY and done == {_F}):
        return
    if _F not in done:
        missing, remedy = f"{stage}F{micro_batch}", "add it"
    elif _I in done:
        missing, remedy = f"{stage}W{micro_batch}", f"add it after {stage}I{micro_batch}"
    else:
        missing, remedy = (
            f"{stage}B{micro_batch}",
            f"add it after {stage}F{micro_batch}, or {stage}I{micro_batch} and {stage}W{micro_batch}",
        )
    raise ScheduleError(f"rank {rank}, end of its order: {missing} never runs; {remedy}")


def _check_in_flight(rank: int, order: Order, limits: Sequence[int]) -> None:
    held = dict.fromkeys(range(len(limits)), 0)
    for position, action in enumerate(order):
        if action.kind is _F:
            held[action.stage] += 1
            if held[action.stage] > limits[action.stage]:
                raise ScheduleError(
                    f"rank {rank}, position {position}: {action} makes {held[action.stage]} in flight in stage {action.stage}, "
                    f"and the limit is {limits[action.stage]}; run a backward before it, or raise the limit"
                )
        elif action.kind in (_B, _W):
            held[action.stage] -= 1
