"""What the person looks at, as the canvas reports it. Comes from a browser, so nothing of it is believed unchecked."""

from collections.abc import Mapping
from dataclasses import dataclass

GAPS = ("doing", "cause")


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """The visible interval, in microseconds since the run's first event.

    Args:
        follow: The newest steps are kept in view; then ``from_us`` and ``to_us`` do not matter.
        width_px: Width of the canvas.
        jump: The jump that this view answers to; a view from before it is out of date.
        path: The critical path is wanted.
        gaps: How bubbles are told apart by colour: by what the rank is ``"doing"``, by their ``"cause"``, or not at all, ``""``.
        levels: Micro-batches in flight and memory are wanted under the rows.
    """

    from_us: float
    to_us: float
    follow: bool
    width_px: int
    jump: str
    path: bool = False
    gaps: str = ""
    levels: bool = True

    @classmethod
    def read(cls, value: object) -> "ViewState | None":
        """Read what came from the browser; None if there is nothing or it makes no sense."""
        if not isinstance(value, Mapping):
            return None
        try:
            view = cls(
                from_us=float(value["from"]),
                to_us=float(value["to"]),
                follow=bool(value["follow"]),
                width_px=min(max(int(value["width"]), 100), 8000),
                jump=str(value["jump"]),
                path=bool(value.get("path", False)),
                gaps=str(value["gaps"]) if value.get("gaps") in GAPS else "",
                levels=bool(value.get("levels", True)),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        finite = abs(view.from_us) < 1e15 and abs(view.to_us) < 1e15  # also False for NaN
        return view if finite and view.to_us > view.from_us else None
