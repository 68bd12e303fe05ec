"""The message from server to canvas: a JSON header and binary columns in one piece, so that nothing is parsed number by number.

    | "GNT1" | header length (u4) | header, JSON, padded to 8 bytes | column | column | ...      each column padded to 8 bytes

``components/gantt/decode.js`` reads it; :func:`decode` is its twin for tests and exports.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard.window import Window

_MAGIC = b"GNT1"


Columns = Mapping[str, NDArray[Any]]


def encode(window: Window, header: Mapping[str, Any], more: Mapping[str, Columns] | None = None) -> bytes:
    """Pack a header and columns.

    Args:
        window: Its bars and spans are the first two groups of columns.
        header: JSON without NaN; ``layout`` is added to it.
        more: Further groups of columns, by name.
    """
    layout: dict[str, list[dict[str, Any]]] = {}
    blobs: list[bytes] = []
    offset = 0
    for group, columns in {"bars": window.bars, "spans": window.spans, **(more or {})}.items():
        layout[group] = []
        for name, values in columns.items():
            layout[group].append({"name": name, "type": values.dtype.str[1:], "offset": offset, "length": len(values)})
            blob = values.tobytes()
            blobs.append(blob + b"\0" * (-len(blob) % 8))
            offset += len(blobs[-1])
    text = json.dumps({**header, "layout": layout}, allow_nan=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([_MAGIC, struct.pack("<I", len(text)), text, *blobs])


def decode(message: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Read back header, bars and spans; :func:`decode_groups` reads the other groups too.

    Raises:
        ValueError: If ``message`` does not begin as one.
    """
    header, groups = decode_groups(message)
    return header, groups["bars"], groups["spans"]


def decode_groups(message: bytes) -> tuple[dict[str, Any], dict[str, dict[str, NDArray[Any]]]]:
    """Read back the header, and all groups of columns by name.

    Raises:
        ValueError: If ``message`` does not begin as one.
    """
    if message[:4] != _MAGIC:
        raise ValueError(f"the message begins with {message[:4]!r} instead of {_MAGIC!r}; it was not written by dashboard.wire.encode")
    (length,) = struct.unpack("<I", message[4:8])
    header: dict[str, Any] = json.loads(message[8 : 8 + length])
    groups = {
        group: {c["name"]: np.frombuffer(message, "<" + c["type"], c["length"], 8 + length + c["offset"]) for c in columns}
        for group, columns in header["layout"].items()
    }
    return header, groups
