"""Copying a run from its ranks' endpoints into a local run directory, live, with no shared disk.

What was copied is remembered by the copy itself: the next byte to ask for is where the local file ends. So a collector that
was killed, or a network that broke, costs nothing but time.
"""

import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from pptoolkit.errors import PPToolkitError, RunError
from pptoolkit.telemetry.endpoint_client import EndpointClient, EndpointError
from pptoolkit.telemetry.heartbeat import Heartbeat
from pptoolkit.telemetry.rank_files import parse_name, rank_files
from pptoolkit.telemetry.run_directory import RunDirectory
from pptoolkit.telemetry.run_info import RunInfo, RunStatus
from pptoolkit.telemetry.served_files import FILE_HEADER, NEXT_HEADER, OFFSET_HEADER, Place

DISCOVERY_INTERVAL_S = 5.0
COLLECTED_FROM = "collected_from"  # marks run.json of a copy
_KINDS = ("events", "scalars")


@dataclass(slots=True)
class RankCopy:
    """How far one rank's files are copied.

    Args:
        url: Its endpoint; None while unknown.
        host: Its host, as service discovery says.
        reachable: Whether it answered the last time; None before it was asked.
        ended: Its telemetry is closed and everything is here.
        places: The next byte to ask for, by kind of file.
    """

    rank: int
    url: str | None = None
    host: str = ""
    reachable: bool | None = None
    ended: bool = False
    places: dict[str, Place] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Round:
    """What one look at all ranks brought. ``notes`` are news for a person: who is gone, who is back, what is missing."""

    bytes: int
    notes: tuple[str, ...]


class Collector:
    """Copies one run.

    Args:
        url: Base address of rank 0, e.g. ``"http://node0:9100"``; any rank of the run will do.
        client: Asks the endpoints.
    """

    def __init__(self, url: str, client: EndpointClient) -> None:
        self._url, self._client = url, client
        self._ranks: dict[int, RankCopy] = {}
        self._discovered_s = float("-inf")
        self._notes: list[str] = []
        self._info: RunInfo | None = None
        self._run: RunDirectory | None = None

    def open(self, path: Path | None) -> RunDirectory:
        """Ask for run.json and make the local run directory, or continue the copy that is there.

        Args:
            path: Where; default: ``runs/<run_id>``.

        Raises:
            EndpointError: If the first address does not answer as a rank's endpoint.
            RunError: If something else is at ``path``, or it cannot be written.
        """
        info = self._ask_info(self._url)
        run = RunDirectory(path if path is not None else Path("runs") / info.run_id)
        if run.exists:
            _check_same(run, info)
        else:
            RunDirectory.create(run.path, _as_copy(info, self._url))
        self._run = run
        self._keep(info)
        return run

    @property
    def info(self) -> RunInfo:
        """run.json as it was last seen."""
        assert self._info is not None, "open() comes first"
        return self._info

    @property
    def ranks(self) -> tuple[RankCopy, ...]:
        return tuple(self._ranks[rank] for rank in sorted(self._ranks))

    @property
    def complete(self) -> bool:
        """Whether the run has ended and everything of every rank is here."""
        return self.info.status.ended and len(self._ranks) == self.info.ranks and all(copy.ended for copy in self._ranks.values())

    @property
    def silent(self) -> bool:
        """Whether no rank that still has something to tell answered in the last round."""
        return not any(copy.reachable and not copy.ended for copy in self._ranks.values())

    def poll(self) -> Round:
        """Copy what is new on all ranks."""
        self._notes = []
        if time.monotonic() - self._discovered_s >= DISCOVERY_INTERVAL_S or self.silent:
            self._discover()
        size = 0
        for copy in self.ranks:
            size += self._take_rank(copy)
        for copy in self.ranks:
            if copy.reachable is False and not copy.ended:
                size += self._take_from_neighbour(copy)
        self._take_info()
        return Round(size, tuple(self._notes))

    # -- finding ranks ---------------------------------------------------------------------------------------------------

    def _discover(self) -> None:
        for url in self._known_urls():
            try:
                groups = self._client.get_json(f"{url}/sd")
            except EndpointError as error:
                if error.refused and url == self._url:
                    raise
                continue
            for group in groups if isinstance(groups, list) else ():
                self._add_target(group)
            self._discovered_s = time.monotonic()
            break
        if not self._ranks:
            self._add(0, self._url, "")

    def _add_target(self, group: Any) -> None:
        try:
            labels = group["labels"]
            url = f"{labels.get('__scheme__', 'http')}://{group['targets'][0]}"
            self._add(int(labels["rank"]), url, str(labels.get("host", "")))
        except (KeyError, IndexError, TypeError, ValueError):
            return  # of another release: it names what it names

    def _add(self, rank: int, url: str, host: str) -> None:
        given, told = urlsplit(self._url), urlsplit(url)
        if rank == 0 and given.port == told.port:
            url = self._url  # the way that the user knows: through a tunnel, or by a name that the certificate has
        copy = self._ranks.get(rank)
        if copy is None:
            copy = self._ranks[rank] = RankCopy(rank, places={kind: self._local_end(kind, rank) for kind in _KINDS})
        if copy.url != url:
            copy.url, copy.ended = url, False
        copy.host = host or copy.host

    def _known_urls(self) -> Iterator[str]:
        yield self._url
        for copy in self.ranks:
            if copy.url is not None and copy.url != self._url:
                yield copy.url

    # -- copying ---------------------------------------------------------------------------------------------------------

    def _take_rank(self, copy: RankCopy) -> int:
        if copy.ended or copy.url is None:
            return 0
        size = 0
        try:
            beat = Heartbeat.from_dict(self._client.get_json(f"{copy.url}/heartbeat"))
            self._keep_heartbeat(beat)
            for kind in _KINDS:
                size += self._take_files(kind, copy, copy.url)
        except (EndpointError, TypeError) as error:
            if copy.reachable is not False:
                self._notes.append(f"rank {copy.rank} does not answer, and is asked again: {error}")
            copy.reachable = False
            return size
        if copy.reachable is False:
            self._notes.append(f"rank {copy.rank} answers again at {copy.url}")
        copy.reachable = True
        copy.ended = beat.status != RunStatus.RUNNING
        return size

    def _take_from_neighbour(self, copy: RankCopy) -> int:
        """A rank that is gone left its files on its host, where another rank may still serve them."""
        for other in self.ranks:
            if other.reachable and not other.ended and other.url is not None and other.host == copy.host:
                try:
                    return sum(self._take_files(kind, copy, other.url) for kind in _KINDS)
                except EndpointError:
                    continue
        return 0

    def _take_files(self, kind: str, copy: RankCopy, url: str) -> int:
        taken = 0
        while True:
            place = copy.places[kind]
            answer = self._client.get(f"{url}/{kind}?from={place}&rank={copy.rank}")
            name, after = answer.headers.get(FILE_HEADER, ""), answer.headers.get(NEXT_HEADER, "")
            if not answer.body:
                return taken
            parsed = parse_name(name)
            if parsed is None or parsed[0] != copy.rank:
                raise EndpointError(f"{url}/{kind} names the file {name!r}, which is none of rank {copy.rank}", refused=True)
            self._note_gap(kind, copy, place, parsed)
            self._keep_bytes(kind, name, int(answer.headers.get(OFFSET_HEADER, "0")), answer.body)
            copy.places[kind] = Place.parse(after)
            taken += len(answer.body)

    def _note_gap(self, kind: str, copy: RankCopy, place: Place, found: tuple[int, int, int]) -> None:
        _, attempt, segment = found
        if kind == "events" and attempt == place.attempt and segment > place.segment + (1 if place.byte else 0):
            lost = segment - place.segment - (1 if place.byte else 0)
            self._notes.append(f"rank {copy.rank}: {lost} event files were removed (telemetry.max_bytes) before they could be collected")

    def _take_info(self) -> None:
        for url in self._known_urls():
            try:
                self._keep(self._ask_info(url))
            except PPToolkitError:
                continue
            return

    def _ask_info(self, url: str) -> RunInfo:
        body = self._client.get_json(f"{url}/run")
        try:
            return RunInfo.model_validate(body)
        except ValidationError as error:
            raise EndpointError(f"{url}/run is not the run.json of a run: {error.errors()[0]['msg']}", refused=True) from error

    # -- the local copy --------------------------------------------------------------------------------------------------

    def _keep(self, info: RunInfo) -> None:
        assert self._run is not None
        if self._info is not None and _knows_less(info, self._info):
            return
        if info != self._info:
            self._run.write_info(_as_copy(info, self._url))
            if info.plan:
                info.read_plan().save(self._run.plan_path)
            self._info = info

    def _keep_heartbeat(self, beat: Heartbeat) -> None:
        """Keep it on this machine's clock: the other's may be wrong, and who looks here compares with the time here."""
        assert self._run is not None
        now = time.time()
        began = now - beat.op_seconds if beat.op_seconds is not None else None
        Heartbeat.from_dict({**beat.to_dict(), "unix_s": now, "op_start_unix_s": began}).write(self._run)

    def _keep_bytes(self, kind: str, name: str, offset: int, data: bytes) -> None:
        assert self._run is not None
        path = self._folder(kind) / name
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                written = 0
                while written < len(data):
                    written += os.pwrite(descriptor, data[written:], offset + written)
            finally:
                os.close(descriptor)
        except OSError as error:
            remedy = "free space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "make the place writable"
            raise RunError(f"cannot write {path}: {error.strerror or error}; {remedy} and start again, it goes on from here") from error

    def _local_end(self, kind: str, rank: int) -> Place:
        files = rank_files(self._folder(kind), rank)
        return Place(files[-1].attempt, files[-1].segment, files[-1].path.stat().st_size) if files else Place()

    def _folder(self, kind: str) -> Path:
        assert self._run is not None
        return self._run.events_path if kind == "events" else self._run.scalars_folder


def _as_copy(info: RunInfo, url: str) -> RunInfo:
    return info.evolve(**{COLLECTED_FROM: url})


def _knows_less(info: RunInfo, known: RunInfo) -> bool:
    """Whether run.json of another host has not heard yet that the attempt ended."""
    return known.status.ended and not info.status.ended and len(info.attempts) <= len(known.attempts)


def _check_same(run: RunDirectory, info: RunInfo) -> None:
    there = run.read_info()
    if (there.run_id, there.created_unix_s) != (info.run_id, info.created_unix_s):
        raise RunError(f"{run.path} holds another run ({there.run_id}); choose another directory with -o")
    if COLLECTED_FROM not in there.to_dict():
        raise RunError(f"{run.path} is where the run itself writes; choose another directory with -o, or read it there: it needs no copy")
