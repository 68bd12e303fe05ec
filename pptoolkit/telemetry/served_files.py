"""What a rank's endpoint hands to ``pptoolkit collect``: the bytes of its event and scalar files, from a place on.

    GET /events?from=0            the beginning; "from" may be left out
    GET /events?from=1.3.4096     attempt 1, segment 3, from byte 4096 on
    GET /scalars?from=1.0.512     likewise; scalars have one file an attempt, so the segment is 0

The answer's body are bytes of one file, at most a MiB. Its headers say which file (Pptoolkit-File), from which byte on
(Pptoolkit-Offset), and where to ask next (Pptoolkit-Next). An empty body: nothing new, ask again later. Every answer is a
pure function of place and file, so a client that broke off asks again from where its own copy ends.
"""

import os
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from pptoolkit.telemetry.exporter import Request, Response
from pptoolkit.telemetry.rank_files import rank_files
from pptoolkit.telemetry.run_directory import RunDirectory

MOST_BYTES = 1 << 20
FILE_HEADER, OFFSET_HEADER, NEXT_HEADER = "Pptoolkit-File", "Pptoolkit-Offset", "Pptoolkit-Next"
HEARTBEAT = "/heartbeat"
_RECENTLY_S = 10.0


class Place(NamedTuple):
    """A byte in the files of one rank, in the order in which they are written."""

    attempt: int = 0
    segment: int = 0
    byte: int = 0

    def __str__(self) -> str:
        return f"{self.attempt}.{self.segment}.{self.byte}"

    @classmethod
    def parse(cls, text: str) -> "Place":
        """Read ``"1.3.4096"``, or ``"0"`` for the beginning.

        Raises:
            ValueError: If it is neither.
        """
        if text in ("", "0"):
            return cls()
        numbers = [int(part) for part in text.split(".")]
        if len(numbers) != 3 or min(numbers) < 0:
            raise ValueError(text)
        return cls(*numbers)


class ServedFiles:
    """Answers /events and /scalars, and knows whether somebody is collecting.

    Args:
        run: The run directory of this host.
        rank: The rank whose files are served; those of another rank of this host on demand (``rank=`` in the query), for when it is gone.
        committed: The event file that is being written and how many of its bytes will not be taken back.
    """

    def __init__(self, run: RunDirectory, rank: int, *, committed: Callable[[], tuple[Path | None, int]]) -> None:
        self._run, self._rank, self._committed = run, rank, committed
        self._changed = threading.Condition()
        self._asked_s: float | None = None  # when somebody last collected
        self._awaited: set[str] = set()
        self._awaited_then: set[str] = set()

    def events(self, request: Request) -> Response:
        return self._answer("/events", self._run.events_path, request)

    def scalars(self, request: Request) -> Response:
        return self._answer("/scalars", self._run.scalars_folder, request)

    def note(self, path: str) -> None:
        """Tell that ``path`` was answered with the last that there will be."""
        with self._changed:
            self._awaited.discard(path)
            if path == HEARTBEAT and self._awaited_then:
                # Only who has heard that this is the end knows that what is fetched now is all.
                self._awaited, self._awaited_then = self._awaited_then, set()
            self._changed.notify_all()

    def expect(self, paths: set[str]) -> None:
        """From now on nothing is added: where somebody was collecting, wait for them to hear so, and then to ask for ``paths``."""
        with self._changed:
            if self._asked_s is not None and time.monotonic() - self._asked_s <= _RECENTLY_S:
                self._awaited, self._awaited_then = {HEARTBEAT}, set(paths)

    def linger(self, *, limit_s: float) -> bool:
        """Wait until everything that is expected was asked for; False if that did not happen in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._awaited, limit_s)

    def _answer(self, path: str, folder: Path, request: Request) -> Response:
        try:
            place, rank = Place.parse(request.query.get("from", "0")), int(request.query.get("rank", self._rank))
        except ValueError:
            text = f"{dict(request.query)} is no place; ask {path}?from=0, then from the {NEXT_HEADER} of each answer\n"
            return Response(text.encode(), "text/plain; charset=utf-8", HTTPStatus.BAD_REQUEST)
        response = self._read(folder, rank, place)
        if rank == self._rank:
            with self._changed:
                self._asked_s = time.monotonic()
            if not response.body:
                self.note(path)
        return response

    def _read(self, folder: Path, rank: int, place: Place) -> Response:
        files = [file for file in rank_files(folder, rank) if (file.attempt, file.segment) >= place[:2]]
        current, committed = self._committed()
        for position, file in enumerate(files):
            offset = place.byte if (file.attempt, file.segment) == place[:2] else 0
            try:
                with file.path.open("rb") as source:
                    size = committed if file.path == current else os.fstat(source.fileno()).st_size
                    if offset > size:
                        text = f"{file.path.name} has {size} bytes, so nothing is at {offset}: it is not the file that was collected\n"
                        return Response(text.encode(), "text/plain; charset=utf-8", HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
                    source.seek(offset)
                    data = source.read(min(MOST_BYTES, size - offset))
            except OSError:
                continue  # removed by retention while we looked
            if data or position == len(files) - 1:
                where = Place(file.attempt, file.segment, offset)
                return _chunk(data, file.path.name, where)
        return _chunk(b"", "", place)


def _chunk(data: bytes, name: str, place: Place) -> Response:
    after = place._replace(byte=place.byte + len(data))
    headers = {FILE_HEADER: name, OFFSET_HEADER: str(place.byte), NEXT_HEADER: str(after)}
    return Response(data, "application/octet-stream", HTTPStatus.OK, headers)
