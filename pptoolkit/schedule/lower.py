"""From a compute order to what a rank really does: receives, computes and sends. Pure.

Two things are decided here rather than while training, where they would be guesses:

* when a receive is posted: ``lookahead`` compute actions before the one that needs it, so that the tensor travels
  while the rank computes, and no earlier, so that the number of buffers does not grow with the number of micro-batches;
* when a send is known to have arrived, so that its tensor can be let go inside the step:

      rank 0:  F0 send(F0) ......................... recv(B0) -> send(F0) is over: rank 1 needed it to make B0
      rank 1:          recv(F0) F0 ... B0 send(B0)
"""

from collections import defaultdict
from collections.abc import Iterator

from pptoolkit.schedule.actions import Action, ActionKind, Order, Schedule

_SEND_TO_RECV = {
    ActionKind.SEND_ACTIVATION: ActionKind.RECV_ACTIVATION,
    ActionKind.SEND_GRADIENT: ActionKind.RECV_GRADIENT,
}
_BACKWARDS = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)


def input_of(action: Action, schedule: Schedule) -> Action | None:
    """Return the receive that compute ``action`` waits for, or None where its input is already on the rank."""
    if action.kind is ActionKind.FORWARD:
        source, kind = action.stage - 1, ActionKind.RECV_ACTIVATION
    elif action.kind in _BACKWARDS:
        source, kind = action.stage + 1, ActionKind.RECV_GRADIENT
    else:
        return None
    if not 0 <= source < schedule.stages or _same_rank(schedule, source, action.stage):
        return None
    return Action(action.stage, kind, action.micro_batch)


def output_of(action: Action, schedule: Schedule) -> Action | None:
    """Return the send that follows compute ``action``, or None where nobody on another rank waits for it."""
    if action.kind is ActionKind.FORWARD:
        target, kind = action.stage + 1, ActionKind.SEND_ACTIVATION
    elif action.kind in _BACKWARDS:
        target, kind = action.stage - 1, ActionKind.SEND_GRADIENT
    else:
        return None
    if not 0 <= target < schedule.stages or _same_rank(schedule, target, action.stage):
        return None
    return Action(action.stage, kind, action.micro_batch)


def receive_for(send: Action) -> Action:
    """Return the receive on the other rank that takes what ``send`` gives."""
    step = 1 if send.kind is ActionKind.SEND_ACTIVATION else -1
    return Action(send.stage + step, _SEND_TO_RECV[send.kind], send.micro_batch)


def lower(schedule: Schedule, *, lookahead: int = 2) -> tuple[Order, ...]:
    """Return every rank's actions with communication, in the order in which they run.

    Between two ranks the receives are posted in the order in which the other one sends, because a transport without
    tags (NCCL) matches them by order alone.

    Args:
        schedule: A valid schedule.
        lookahead: How many compute actions ahead of its use a receive is posted; 0 posts it right before.
    """
    expected = _arrivals(schedule)
    return tuple(tuple(_lower_rank(rank, schedule, lookahead, expected)) for rank in range(schedule.ranks))


def finished_sends(schedule: Schedule) -> tuple[dict[Action, tuple[Action, ...]], ...]:
    """Return, for each rank, the sends that are certainly over once a compute action has its input.

    The other rank consumed them before it sent that input, so waiting for them then costs nothing.
    """
    return tuple(_finished_on(rank, schedule) for rank in range(schedule.ranks))


def _same_rank(schedule: Schedule, a: int, b: int) -> bool:
    return schedule.stage_to_rank[a] == schedule.stage_to_rank[b]


def _arrivals(schedule: Schedule) -> dict[tuple[int, int], list[Action]]:
    """Map (sending rank, receiving rank) to the receives, in the order in which the sender sends."""
    arrivals: dict[tuple[int, int], list[Action]] = defaultdict(list)
    for rank, order in enumerate(schedule.orders):
        for action in order:
            send = output_of(action, schedule)
            if send is not None:
                receive = receive_for(send)
                arrivals[rank, schedule.stage_to_rank[receive.stage]].append(receive)
    return arrivals


def _lower_rank(rank: int, schedule: Schedule, lookahead: int, expected: dict[tuple[int, int], list[Action]]) -> Iterator[Action]:
    queues = {source: iter(receives) for (source, target), receives in expected.items() if target == rank}
    source_of = {receive: source for (source, target), receives in expected.items() if target == rank for receive in receives}
    order = schedule.orders[rank]
    posted: set[Action] = set()
    for position, action in enumerate(order):
        for coming in order[position if position == 0 else position + lookahead : position + lookahead + 1]:
            needed = input_of(coming, schedule)
            while needed is not None and needed not in posted:
                receive = next(queues[source_of[needed]])
                posted.add(receive)
                yield receive
        yield action
        send = output_of(action, schedule)
        if send is not None:
            yield send


def _finished_on(rank: int, schedule: Schedule) -> dict[Action, tuple[Action, ...]]:
    sends = {receive_for(send): send for action in schedule.orders[rank] if (send := output_of(action, schedule)) is not None}
    # For each receive of this rank: what its sender had taken from this rank since its send before.
    newly_over: dict[Action, list[Action]] = {}
    for other, order in enumerate(schedule.orders):
        taken: list[Action] = []
        if other == rank:
            continue
        for action in order:
            receive = input_of(action, schedule)
            if receive is not None and receive in sends:
                taken.append(sends[receive])
            send = output_of(action, schedule)
            if send is not None and schedule.stage_to_rank[receive_for(send).stage] == rank:
                newly_over[receive_for(send)], taken = taken, []
    over: dict[Action, tuple[Action, ...]] = {}
    sent: set[Action] = set()
    waiting: list[Action] = []
    for action in schedule.orders[rank]:
        receive = input_of(action, schedule)
        if receive is not None:
            waiting += newly_over.get(receive, [])
            # A receive can be consumed out of sending order, so what it proves over may, on paper, not be sent yet.
            over[action] = tuple(s for s in waiting if s in sent)
            waiting = [s for s in waiting if s not in sent]
        send = output_of(action, schedule)
        if send is not None:
            sent.add(send)
    return {action: done for action, done in over.items() if done}
