"""Numbers as a person reads them: a unit, three digits, no exponent."""

import math

_DASH = "–"


def duration(seconds: float | None) -> str:
    """Format seconds with the unit that suits them: ``"640 µs"``, ``"12.3 ms"``, ``"4.56 s"``, ``"3 min 20 s"``."""
    if seconds is None or not math.isfinite(seconds):
        return _DASH
    size = abs(seconds)
    if size >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    if size >= 120:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if size >= 0.9995:
        return f"{three_digits(seconds)} s"
    if size >= 1e-3:
        return f"{three_digits(seconds * 1e3)} ms"
    return f"{three_digits(seconds * 1e6)} µs" if size > 0 else "0 ms"


def percent(ratio: float | None, *, signed: bool = False) -> str:
    """Format a ratio as percent with one decimal below 10 %: ``0.083`` gives ``"8.3 %"``."""
    if ratio is None or not math.isfinite(ratio):
        return _DASH
    value = ratio * 100
    digits = 1 if abs(value) < 9.95 else 0
    return f"{value:{'+' if signed else ''}.{digits}f} %"


def number(value: float | None, digits: int = 4) -> str:
    """Format a plain number such as a loss with ``digits`` significant digits."""
    if value is None or not math.isfinite(value):
        return _DASH
    return f"{value:#.{digits}g}".rstrip(".")


def size(count: float | None) -> str:
    """Format bytes: ``"1.50 GiB"``."""
    if count is None or not math.isfinite(count):
        return _DASH
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{three_digits(count)} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1024
    return f"{three_digits(count)} GiB"


def three_digits(value: float) -> str:
    """Format a number between 0.01 and 999 with three digits: ``"9.00"``, ``"12.6"``, ``"127"``."""
    size_ = abs(value)
    return f"{value:.0f}" if size_ >= 99.95 else f"{value:.1f}" if size_ >= 9.995 else f"{value:.2f}"
