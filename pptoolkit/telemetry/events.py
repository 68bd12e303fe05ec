"""The event: one timed thing on one rank. The schema that every reader and writer of a run shares."""

from enum import IntEnum, IntFlag
from typing import NamedTuple

import pyarrow as pa

SCHEMA_VERSION = 1


class Op(IntEnum):
    """What an event timed. The numbers are on disk: never reuse one."""

    FORWARD = 0
    BACKWARD = 1
    BACKWARD_INPUT = 2
    BACKWARD_WEIGHT = 3
    RECV = 4  # the blocked wait for a tensor; peer is the stage it comes from
    SEND = 5  # handing a tensor to the transport; peer is the stage it goes to
    # Collectives: gradients, norms, losses. stage -1: all ranks; stage and peer the same: the replicas of that stage; two different
    # stages: these two in one replica (tied weights); a stage and peer -1: within the rank.
    REDUCE = 6
    OPTIMIZER = 7
    DATA = 8
    CHECKPOINT = 9
    EVAL = 10
    STEP = 11  # the whole step of this rank, wall time
    CLOCK = 12  # start_ns: local time; end_ns: offset_ns to rank 0; bytes: uncertainty_ns
    LAYER_FORWARD = 13  # one layer on a sampled micro-batch; peer is the layer's index
    LAYER_BACKWARD = 14
    SCHEDULE = 15  # from the first to the last action of the step; what no op covers inside it is host time
    RECV_POST = 16  # an instant: the receive buffer was handed to the transport
    SEND_WAIT = 17  # the blocked wait until a send has left
    PROBE = 18  # idle-link probe before step 0; bytes over (end - start), peer as in SEND; micro_batch -1
    STARTUP = 19  # from the start of the process to the first step of the attempt
    REDUCE_POST = 20  # an instant: this rank's share of the step's last collective over all ranks is on its way
    PAUSE = 24  # the process stood still: a garbage collection that was seen as such


# These belong to no step in particular, or to the whole attempt: kept when steps are sampled, carried on when old files go.
LASTING_OPS = (Op.CLOCK, Op.PROBE, Op.CHECKPOINT, Op.EVAL, Op.STARTUP)
COMPUTE_OPS = (Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT)


class Flag(IntFlag):
    """Marks on an event."""

    NONE = 0
    SAMPLED = 1  # layers were timed inside this op, so it ran a little slower than its neighbours
    FIRST_USE = 2  # the first step of an attempt or of a new shape: allocations and caches fill
    TRANSFER_UNSEEN = 4  # a receive of which only the wait was timed, on the stream that waited: no throughput follows from it


class Event(NamedTuple):
    """One row. Times are the rank's monotonic clock in nanoseconds (``time.monotonic_ns``)."""

    step: int
    stage: int
    micro_batch: int
    op: int
    peer: int
    start_ns: int
    end_ns: int
    bytes: int
    memory_bytes: int
    flags: int


EVENT_SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("stage", pa.int16()),  # -1 where no stage is meant
        ("micro_batch", pa.int16()),  # -1: none
        ("op", pa.uint8()),
        ("peer", pa.int16()),  # -1: none
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("bytes", pa.int64()),
        ("memory_bytes", pa.int64()),  # 0: not measured
        ("flags", pa.uint8()),
    ]
)
