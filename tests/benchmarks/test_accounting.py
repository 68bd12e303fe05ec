"""What benchmarks/accounting.py says of delays that were found, missed, or seen in a second place."""

import pandas as pd
import pytest

from benchmarks import accounting_job as job
from benchmarks.accounting import judge
from pptoolkit.errors import TrainingError

KINDS = [job.DATA, job.OPTIMIZER]


def blocks_with(change_s):
    """Return 6 blocks with each delay, and one without before each; ``change_s``: by delay and part, what is found beside the known."""
    rows = []
    for block in range(job.steps_of(6, KINDS) // job.BLOCK_STEPS):
        kind = job.kind_of(block * job.BLOCK_STEPS, KINDS)
        own = {"rank 0 data": 0.002, "rank 1 optimizer": 0.001, "rank 1 compute": 0.010 + block * 1e-5}
        rows.append({part: seconds + change_s.get(kind, {}).get(part, 0.0) for part, seconds in own.items()})
    return pd.DataFrame(rows)


def test_a_delay_is_found_where_it_was_and_nowhere_else():
    found, stray = judge(job.DATA, blocks_with({}), KINDS)
    assert found.name == "data: found in rank 0 data, of 40.0 ms a step"
    assert (found.low, found.value, found.high) == pytest.approx((1, 1, 1))
    assert stray.value == pytest.approx(1e-5 / job.DELAY_S)  # the drift from block to block
    assert (found.holds, stray.holds) == (True, True)


def test_a_part_of_it_that_is_missing_or_found_elsewhere_does_not_hold():
    lost = {"rank 0 data": -0.1 * job.DELAY_S, "rank 1 compute": 0.1 * job.DELAY_S}
    found, stray = judge(job.DATA, blocks_with({job.DATA: lost}), KINDS)
    assert found.value == pytest.approx(0.9)
    assert stray.name == "data: most in another part (rank 1 compute)"
    assert (found.holds, stray.holds) == (False, False)
    assert all(result.holds for result in judge(job.OPTIMIZER, blocks_with({job.DATA: lost}), KINDS))


def test_a_part_that_was_hardly_seen_is_an_error_that_asks_for_more_rounds():
    blocks = blocks_with({})
    blocks.loc[3:, "rank 0 data"] = float("nan")
    with pytest.raises(TrainingError, match="seen in 1 of 6 pairs of blocks; use more --rounds"):
        judge(job.DATA, blocks, KINDS)
