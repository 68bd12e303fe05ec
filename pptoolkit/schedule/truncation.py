"""Any number of micro-batches for a schedule that is drawn for a round number of them. Pure.

A schedule without some of its micro-batches still runs: micro-batches do not wait for each other, so what is left waits for nothing
that was taken away. So a pattern for 4 micro-batches serves 3, at the price of the idle places of the fourth.
"""

from pptoolkit.schedule.actions import Order


def keep_micro_batches(orders: tuple[Order, ...], micro_batches: int) -> tuple[Order, ...]:
    """Return the orders without the micro-batches from ``micro_batches`` on."""
    return tuple(tuple(action for action in order if action.micro_batch < micro_batches) for order in orders)
