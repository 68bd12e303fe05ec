"""Bringing folder, data source and dashboards to Grafana: twice is the same as once, and nothing that a person changed is lost."""

import importlib.metadata
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pptoolkit.errors import ConfigError
from pptoolkit.monitoring.grafana_server import GrafanaError, GrafanaServer

FOLDER_UID = "pptoolkit"
DATA_SOURCE_UID = "pptoolkit-prometheus"
DATA_SOURCE_NAME = "Prometheus (pptoolkit)"
DEFAULT_PROMETHEUS = "http://localhost:9090"
_SIGNATURE = "pptoolkit grafana push"
# Grafana's own: they differ from server to server, or with every save.
_SERVER_KEYS = frozenset({"id", "version"})


class Outcome(StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    KEPT = "kept as it is"  # not what we wanted: the note says why


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one thing."""

    subject: str
    outcome: Outcome
    note: str = ""


def load_dashboards(folder: Path) -> list[dict[str, Any]]:
    """Return the dashboards in ``folder``, by file name.

    Raises:
        ConfigError: If there is none, or one is not readable.
    """
    try:
        found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the dashboards in {folder}: {error}; reinstall the package") from error
    if not found:
        raise ConfigError(f"there are no dashboards in {folder}; reinstall the package")
    return found


def push_folder(server: GrafanaServer, title: str | None) -> tuple[str, Change]:
    """Create the folder, or rename it when a title is asked for; return its uid and what was done.

    Args:
        server: Where.
        title: Title of the folder; None: "pptoolkit" for a new one, and whatever it is called for one that is there.

    Raises:
        GrafanaError: If Grafana refuses.
    """
    wanted = title or "pptoolkit"
    subject = f"folder {wanted!r}"
    found = server.find_folder(FOLDER_UID)
    if found is None:
        try:
            uid = str(server.create_folder(FOLDER_UID, wanted)["uid"])
            return uid, Change(subject, Outcome.CREATED)
        except GrafanaError as error:
            if error.code not in (409, 412):
                raise
            # Another folder has this title, or someone made ours a moment ago: use what is there.
            same = [folder for folder in server.list_folders() if folder["uid"] == FOLDER_UID or folder["title"] == wanted]
            if not same:
                raise
            return str(same[0]["uid"]), Change(subject, Outcome.UNCHANGED, "it was there already")
    if title is None or found["title"] == title:
        return FOLDER_UID, Change(f"folder {found['title']!r}", Outcome.UNCHANGED)
    server.rename_folder(FOLDER_UID, title, version=int(found.get("version", 1)))
    return FOLDER_UID, Change(subject, Outcome.UPDATED, f"it was called {found['title']!r}")


def push_data_source(server: GrafanaServer, prometheus: str | None) -> Change:
    """Create the data source, or change its address when one is asked for; all else that was set in Grafana stays.

    Args:
        server: Where.
        prometheus: Address of Prometheus as Grafana reaches it; None: localhost for a new one, and no change to one that is there.

    Raises:
        GrafanaError: If Grafana refuses.
    """
    subject = f"data source {DATA_SOURCE_NAME!r}"
    found = server.find_data_source(DATA_SOURCE_UID)
    if found is None:
        address = prometheus or DEFAULT_PROMETHEUS
        server.create_data_source(
            {
                "uid": DATA_SOURCE_UID,
                "name": DATA_SOURCE_NAME,
                "type": "prometheus",
                "access": "proxy",
                "url": address,
                "jsonData": {"httpMethod": "POST", "timeInterval": "5s"},
            }
        )
        return Change(subject, Outcome.CREATED, address)
    if prometheus is None or found.get("url", "").rstrip("/") == prometheus.rstrip("/"):
        return Change(subject, Outcome.UNCHANGED)
    if found.get("readOnly"):
        return Change(subject, Outcome.KEPT, f"it is provisioned from a file with {found.get('url')}; change it there")
    # The version that we read goes with it, so that Grafana refuses when someone else was faster.
    server.update_data_source(DATA_SOURCE_UID, {**found, "url": prometheus})
    return Change(subject, Outcome.UPDATED, f"{prometheus}; it was {found.get('url')}")


def push_dashboard(server: GrafanaServer, body: Mapping[str, Any], *, folder_uid: str, overwrite: bool) -> Change:
    """Create or update one dashboard; one that a person has saved since the last push is kept.

    Args:
        server: Where.
        body: The dashboard, with its uid.
        folder_uid: The folder that it belongs in.
        overwrite: Replace it even if a person has changed it; Grafana keeps their version in the dashboard's history.

    Raises:
        GrafanaError: If Grafana refuses for another reason than a conflict.
    """
    subject = f"dashboard {body['title']!r}"
    message = f"{_SIGNATURE}, version {importlib.metadata.version('pptoolkit')}"
    found = server.find_dashboard(body["uid"])
    if found is None:
        return _save(lambda: server.save_dashboard(body, folder_uid=folder_uid, message=message, overwrite=False), subject, Outcome.CREATED)
    theirs, meta = found["dashboard"], found.get("meta", {})
    if _holds(theirs, {key: value for key, value in body.items() if key not in _SERVER_KEYS}):
        return Change(subject, Outcome.UNCHANGED)
    if meta.get("provisioned"):
        return Change(subject, Outcome.KEPT, "it is provisioned from a file; change that, or remove it and push again")
    if not overwrite and not server.last_message(body["uid"]).startswith(_SIGNATURE):
        return Change(
            subject, Outcome.KEPT, "someone has changed it in Grafana; --overwrite replaces it, and their version stays in its history"
        )
    ours = {**body, "id": theirs.get("id"), "version": theirs.get("version")}
    place = str(meta.get("folderUid", folder_uid))  # a dashboard that a person has moved stays where they put it
    return _save(lambda: server.save_dashboard(ours, folder_uid=place, message=message, overwrite=overwrite), subject, Outcome.UPDATED)


def _save(call: Callable[[], None], subject: str, outcome: Outcome) -> Change:
    try:
        call()
    except GrafanaError as error:
        if error.code not in (409, 412):
            raise
        return Change(subject, Outcome.KEPT, str(error))
    return Change(subject, outcome)


def _holds(theirs: Any, ours: Any) -> bool:
    """Whether ``theirs`` says all that ``ours`` says; a server may add defaults of its own to objects."""
    if isinstance(ours, Mapping):
        return isinstance(theirs, Mapping) and all(key in theirs and _holds(theirs[key], value) for key, value in ours.items())
    if isinstance(ours, list):
        return isinstance(theirs, list) and len(theirs) == len(ours) and all(map(_holds, theirs, ours))
    return bool(theirs == ours)
