"""Which schedule a trace shows: a known one if every rank computes in its order, else that order itself."""

from collections import Counter

import pandas as pd

from pptoolkit.errors import DataError, PPToolkitError
from pptoolkit.foreign.trace_table import COMPUTE
from pptoolkit.schedule import FORWARD_ONLY, SCHEDULES, Action, ActionKind, Order, Schedule, build_schedule
from pptoolkit.schedule.table import schedule_from_orders

_KINDS = {"forward-compute": ActionKind.FORWARD, "backward-compute": ActionKind.BACKWARD}


def infer_schedule(table: pd.DataFrame) -> Schedule:
    """Return the schedule of a trace read by :func:`~pptoolkit.foreign.trace_table.read_trace`.

    Raises:
        DataError: If the ranks' orders make no schedule, e.g. because rows are missing.
    """
    orders = _orders(table)
    micro_batches = max(action.micro_batch for order in orders for action in order) + 1
    stages = max(action.stage for order in orders for action in order) + 1
    for name in SCHEDULES:
        if name == FORWARD_ONLY:
            continue
        try:
            known = build_schedule(name, ranks=len(orders), stages=stages, micro_batches=micro_batches)
        except PPToolkitError:
            continue
        if known.orders == orders:
            return known
    try:
        return schedule_from_orders("schedule.csv", orders)
    except PPToolkitError as error:
        raise DataError(f"the compute ops of the trace make no schedule: {error}; export whole steps of all ranks") from error


def _orders(table: pd.DataFrame) -> tuple[Order, ...]:
    """Return each pipeline rank's most common order over its replicas and steps."""
    compute = table[table["optype"].isin(COMPUTE)]
    text = compute["part"].astype("str") + compute["optype"].map({name: kind.value for name, kind in _KINDS.items()})
    words = compute.assign(word=text + compute["mb_id"].astype("str"))
    lines = words.groupby(["pipeline_rank", "dp_rank", "step"], sort=True)["word"].agg(" ".join)
    orders = []
    for _, found in lines.groupby(level="pipeline_rank", sort=True):
        common, _ = Counter(found).most_common(1)[0]
        orders.append(tuple(Action.parse(word) for word in common.split()))
    return tuple(orders)
