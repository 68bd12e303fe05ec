"""The progress line of a training run: a live bar on a terminal, a line now and then elsewhere. Torch-free."""

import math
import sys
import time
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_LINES_WITHOUT_TERMINAL = 10


class TrainingProgress:
    """Shows loss, step time, samples per second and bubble ratio of the latest step.

    Args:
        steps: Steps of the whole run.
        start: Steps that were done before.
        shown: False on every rank but one.
        stream: Where to; standard output by default.
    """

    def __init__(self, steps: int, *, start: int = 0, shown: bool = True, stream: TextIO | None = None) -> None:
        self._steps, self._done, self._shown = steps, start, shown
        self._console = Console(file=stream or sys.stdout, highlight=False)
        self._bar: Progress | None = None
        self._every = max(1, steps // _LINES_WITHOUT_TERMINAL)
        self._last_print = time.monotonic()

    def __enter__(self) -> "TrainingProgress":
        if self._shown and self._console.is_terminal:
            self._bar = Progress(
                TextColumn("training"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[numbers]}"),
                TimeRemainingColumn(compact=True),
                console=self._console,
                refresh_per_second=2,  # drawing it takes milliseconds, which training would rather have
            )
            self._task = self._bar.add_task("training", total=self._steps, completed=self._done, numbers="starting")
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, *, loss: float, step_time_s: float, samples: int, bubble_ratio: float) -> None:
        """Show one finished step.

        Args:
            loss: Mean loss of the batch.
            step_time_s: Wall time of the step, seconds.
            samples: Samples in the batch.
            bubble_ratio: Idle share of all ranks in the step, in [0, 1]; not a number where nobody timed the ops.
        """
        self._done += 1
        if not self._shown:
            return
        told = self._done in (1, self._steps) or self._done % self._every == 0 or time.monotonic() - self._last_print > 15
        if self._bar is None and not told:
            return
        bubble = "" if math.isnan(bubble_ratio) else f"  bubble {bubble_ratio * 100:.0f} %"
        numbers = f"loss {loss:.4f}  {step_time_s * 1e3:.0f} ms/step  {samples / step_time_s:.1f} samples/s{bubble}"
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, numbers=numbers)
        else:
            self._last_print = time.monotonic()
            # Not by the console, which takes half a millisecond to lay a line out.
            print(f"  step {self._done:>{len(str(self._steps))}}/{self._steps}  {numbers}", file=self._console.file, flush=True)

    def say(self, message: str) -> None:
        """Show one sentence below the steps."""
        if self._shown:
            self._console.print(f"  {message}", soft_wrap=True, markup=False)
