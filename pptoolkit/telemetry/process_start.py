"""When this process began, on its monotonic clock: start-up counts in the accounting of an attempt."""

import os
import time
from pathlib import Path


def process_start_ns() -> int:
    """Return the start of this process on ``time.monotonic_ns``, to a hundredth of a second; now, where the system does not tell."""
    now_ns = time.monotonic_ns()
    try:
        # The command's name, in parentheses, may hold spaces; the start is the 22nd field, in ticks since boot.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
    except (OSError, ValueError, IndexError, AttributeError):
        return now_ns
    return now_ns - max(0, round(age_s * 1e9))
