"""Small JSON files that others read while they are written: replaced in one step, never NaN, never half a file."""

import itertools
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_serial = itertools.count()


def encode_number(value: float) -> float | str:
    """Return ``value``, or ``"NaN"``, ``"Infinity"``, ``"-Infinity"``: JSON has no word for them, and ``float()`` reads all three."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Write ``value`` as JSON that every parser accepts; numbers without a JSON form become strings, as in :func:`encode_number`."""
    return json.dumps(_encodable(value), indent=indent, allow_nan=False)


def to_json_line(value: Mapping[str, Any]) -> str:
    """Write ``value`` as a line of such JSON; cheap where nothing in it needs a second look."""
    try:
        return json.dumps(value, allow_nan=False) + "\n"
    except (TypeError, ValueError):
        return to_json(value) + "\n"


def replace_json(path: Path, body: Any) -> None:
    """Write ``body`` to ``path``; a reader sees the old file or the new one.

    Raises:
        OSError: If the directory is missing, full or not writable.
    """
    replace_text(path, to_json(body, indent=1) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` in one step, as :func:`replace_json` does."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.{next(_serial)}.partial")
    try:
        partial.write_text(text)
        partial.replace(path)
    except OSError:
        if partial.parent.is_dir():
            partial.unlink(missing_ok=True)
        raise


def read_json(path: str | os.PathLike[str]) -> Any | None:
    """Return what ``path`` holds, or None where it is missing, unreadable or not JSON (yet)."""
    try:
        with open(path, "rb", buffering=0) as file:  # of many small files a buffer is most of the cost
            return json.loads(file.read())
    except (OSError, ValueError):
        return None


def _encodable(value: Any) -> Any:
    if isinstance(value, float):
        return encode_number(value)
    if isinstance(value, dict):
        return {str(k): _encodable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(v) for v in value]
    if value is None or isinstance(value, str | int):
        return value
    return str(value)  # a path or a dtype in a config: its text is what a person wants to read
