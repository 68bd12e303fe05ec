"""A run's events in memory, in blocks of neighbouring steps: who asks for a few steps need not look through all of them.

append   | small | small | ... |      neighbours are joined as they become alike in size
blocks   | steps 0-512 | steps 510-1020 | ... | 2040-2047 | 2048 |
between(2046, 2049)                           ^^^^^^^^^^^^^^^^^^  only these are looked through
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pptoolkit.telemetry.event_reader import READER_SCHEMA
from pptoolkit.telemetry.events import Op

BLOCK_ROWS = 1 << 17
_MARKS = pa.array([int(Op.STEP), int(Op.CLOCK), int(Op.PROBE)], pa.uint8())


@dataclass(frozen=True, slots=True)
class _Block:
    first: int
    last: int
    table: pa.Table

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)


class StepBlocks:
    """Events that are asked for by step. The order of the events of one step is kept; that of different steps is not."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._whole: pa.Table | None = None

    def __len__(self) -> int:
        return sum(block.rows for block in self._blocks)

    def append(self, events: pa.Table) -> None:
        """Take events in, with the columns of ``READER_SCHEMA``."""
        if not events.num_rows:
            return
        self._whole = None
        if events.num_rows > BLOCK_ROWS:
            # Read at once, a long run comes rank by rank: every part of it would hold all steps.
            events = events.take(pc.sort_indices(events["step"]))
        self._blocks += [_block(events.slice(at, BLOCK_ROWS)) for at in range(0, events.num_rows, BLOCK_ROWS)]
        # Sizes that at least halve from block to block bound their number and how often a row is copied.
        while len(self._blocks) > 1 and self._blocks[-2].rows < min(2 * self._blocks[-1].rows, BLOCK_ROWS):
            newest, before = self._blocks.pop(), self._blocks.pop()
            self._blocks.append(_block(pa.concat_tables([before.table, newest.table])))

    @property
    def table(self) -> pa.Table:
        """All events."""
        if self._whole is None:
            self._whole = pa.concat_tables([block.table for block in self._blocks]) if self._blocks else READER_SCHEMA.empty_table()
        return self._whole

    def between(self, first: int, last: int) -> pa.Table:
        """Return the events of the steps from ``first`` to ``last``, both included."""
        parts = []
        for block in self._blocks:
            if block.first > last or block.last < first:
                continue
            if first <= block.first and block.last <= last:
                parts.append(block.table)
                continue
            step = block.table["step"]
            parts.append(block.table.filter(pc.and_(pc.greater_equal(step, first), pc.less_equal(step, last))))
        return pa.concat_tables(parts) if parts else READER_SCHEMA.empty_table()


class EventLog:
    """Everything that was read of a run's events.

    Attributes:
        events: All of them.
        marks: The few that say when steps were, what the clocks showed and what the links can: STEP, CLOCK and PROBE.
    """

    def __init__(self) -> None:
        self.events = StepBlocks()
        self.marks = StepBlocks()

    def append(self, events: pa.Table) -> pa.Table:
        """Take new events in; return the marks among them."""
        marks = events.filter(pc.is_in(events["op"], _MARKS))
        self.events.append(events)
        self.marks.append(marks)
        return marks


def _block(table: pa.Table) -> _Block:
    table = table.combine_chunks()
    edges = pc.min_max(table["step"]).as_py()
    return _Block(edges["min"], edges["max"], table)
