"""A run whose plan changed while it trained: which plan held from which step on.

step       0 ............ 39 | 40 .............
plan       cuts [3]          | cuts [4]
run.json   plan = cuts [4],  segments = [{first_step 0, cuts [3]}, {first_step 40, cuts [4]}]

Only the cuts differ from segment to segment; ranks, schedule and micro-batches are those of the run. Steps of different segments are never
put into one statistic: as with attempts, the newest segment with a usable step is the one that counts.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.errors import RunError
from pptoolkit.plan import Plan
from pptoolkit.telemetry.run_info import RunInfo

END = 1 << 62  # a step that no run comes to


class Segment(BaseModel):
    """Steps of one plan.

    Args:
        first_step: The first of them.
        plan: The plan, with what it promised.
        began_unix_s: When the re-cut was done; 0 for the first segment.
        moving_s: What the re-cut took, from the decision to the built stages; 0 for the first segment.
        moved_bytes: What went from rank to rank.
        sentence: Why, as it was said on the screen; empty for the first segment.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    first_step: int
    plan: dict[str, Any]
    began_unix_s: float = 0.0
    moving_s: float = 0.0
    moved_bytes: int = 0
    sentence: str = ""

    @property
    def cuts(self) -> tuple[int, ...]:
        return Plan.from_dict(self.plan, where="a segment in run.json").cuts


_SEGMENTS = TypeAdapter(tuple[Segment, ...])


def segments_of(info: RunInfo) -> tuple[Segment, ...]:
    """Return the segments of a run in order; one where the plan never changed.

    Raises:
        RunError: If run.json holds something else under ``segments``.
    """
    try:
        found = _SEGMENTS.validate_python((info.model_extra or {}).get("segments", ()))
    except ValidationError as error:
        first = error.errors()[0]
        raise RunError(f"run.json of {info.run_id}: segments: {first['msg']}; restore this entry, or remove it") from error
    return found or (Segment(first_step=0, plan=info.plan),)


def spans_of(info: RunInfo) -> tuple[tuple[int, int], ...]:
    """Return (first step, step after the last) of each segment, in order."""
    firsts = [segment.first_step for segment in segments_of(info)]
    return tuple(zip(firsts, [*firsts[1:], END], strict=True))


def info_at(info: RunInfo, step: int) -> RunInfo:
    """Return run.json as it was in ``step``: with the plan that held then."""
    holding = [segment for segment in segments_of(info) if segment.first_step <= step]
    return info if not holding or holding[-1].plan == info.plan else info.evolve(plan=holding[-1].plan)


def info_of(info: RunInfo, steady: SteadySteps) -> RunInfo:
    """Return run.json as it was in the usable steps; as it is where there are none."""
    return info_at(info, int(steady.windows.index[-1])) if steady.count else info


def span_at(info: RunInfo, step: int) -> tuple[int, int]:
    """Return the span of the segment that ``step`` belongs to."""
    return next((span for span in reversed(spans_of(info)) if span[0] <= step), (0, END))
