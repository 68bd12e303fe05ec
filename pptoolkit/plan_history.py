"""The plans of a project, one after the other, so that the one before can be had back.

A plan file keeps its predecessors beside it: ``plan.toml`` and ``plan.history/0001.toml``, ``0002.toml``, and so on. Writing a plan that
differs from the last one adds it to the history; going back puts an earlier one into place, and nothing is ever removed.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from pptoolkit.errors import PlanError
from pptoolkit.plan import Plan

_NAME = re.compile(r"(\d{4,})\.toml")


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One plan of the history; ``current``: it is the one in place."""

    number: int
    plan: Plan
    written_unix_s: float
    current: bool


class PlanHistory:
    """The history of one plan file.

    Args:
        path: The plan file, e.g. ``plan.toml``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.folder = self.path.with_name(f"{self.path.stem}.history")

    def save(self, plan: Plan) -> Path:
        """Write ``plan`` into place, and keep it. A plan that was there before the history began is kept first.

        Raises:
            PlanError: If it cannot be written.
        """
        numbers = self._numbers()
        if self.path.is_file() and not numbers:
            numbers = [self._keep(Plan.load(self.path), 1)]
        if not numbers or Plan.load(self._entry(numbers[-1])).to_dict() != plan.to_dict():
            self._keep(plan, numbers[-1] + 1 if numbers else 1)
        return plan.save(self.path)

    def entries(self) -> tuple[PlanEntry, ...]:
        """Return the history, the oldest first; only the file in place where there is none.

        Raises:
            PlanError: If a file of it cannot be read.
        """
        current = Plan.load(self.path) if self.path.is_file() else None
        found = [(number, self._entry(number)) for number in self._numbers()]
        if not found and current is not None:
            return (PlanEntry(1, current, self.path.stat().st_mtime, True),)
        plans = [(number, Plan.load(path), path.stat().st_mtime) for number, path in found]
        same = [number for number, plan, _ in plans if current is not None and plan.to_dict() == current.to_dict()]
        return tuple(PlanEntry(number, plan, written, number == (same[-1] if same else -1)) for number, plan, written in plans)

    def roll_back(self, number: int | None = None) -> Plan:
        """Write an earlier plan into place and return it.

        Args:
            number: Of the entry; None: the one before the one in place.

        Raises:
            PlanError: If there is no such entry.
        """
        entries = self.entries()
        if number is None:
            here = next((place for place, entry in enumerate(entries) if entry.current), len(entries))
            if here < 1:
                raise PlanError(f"there is no plan before the one in {self.path}; pptoolkit plans shows the history")
            chosen = entries[here - 1]
        else:
            match = [entry for entry in entries if entry.number == number]
            if not match:
                known = ", ".join(str(entry.number) for entry in entries) or "none"
                raise PlanError(f"there is no plan {number} in the history of {self.path}; there is {known}")
            chosen = match[0]
        chosen.plan.save(self.path)
        return chosen.plan

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self.folder)
        except OSError:
            return []
        return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))

    def _entry(self, number: int) -> Path:
        return self.folder / f"{number:04d}.toml"

    def _keep(self, plan: Plan, number: int) -> int:
        plan.save(self._entry(number))
        return number
