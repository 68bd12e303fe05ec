"""A stand-in for Grafana's HTTP API as it is documented: folders, data sources, dashboards with their versions, annotations.

Strict: it refuses what Grafana refuses, with the status and the words of its documentation, and what it does not know is a 404.
"""

import base64
import json
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.stand_in import Answer, Asked

TOKEN = "glsa_right"
PASSWORD = ("editor", "secret")
Body = dict[str, Any]


class Refusal(Exception):
    def __init__(self, code: int, message: str, /, **more: Any) -> None:
        super().__init__(message)
        self.answer = Answer.json(code, {"message": message, **more})


class Grafana:
    """The server's state, and everything that was asked of it.

    Attributes:
        role: What the account may do: ``Viewer``, ``Editor`` or ``Admin``.
        asked: Method and path of every request.
        fault: Answers instead of the server, where it returns something.
        after: Called after each answered request: someone else at work.
    """

    def __init__(self, *, role: str = "Admin") -> None:
        self.role = role
        self.folders: dict[str, Body] = {}
        self.data_sources: dict[str, Body] = {}
        self.dashboards: dict[str, Body] = {}
        self.history: dict[str, list[Body]] = {}
        self.annotations: list[Body] = []
        self.asked: list[tuple[str, str]] = []
        self.fault: Callable[[Asked], Answer | None] = lambda asked: None
        self.after: Callable[[Asked], None] = lambda asked: None
        self._ids = 0

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [request for request in self.asked if request[0] != "GET"]

    @property
    def state(self) -> Any:
        return deepcopy([self.folders, self.data_sources, self.dashboards, self.history, self.annotations])

    def __call__(self, asked: Asked) -> Answer:
        self.asked.append((asked.method, asked.path))
        answer = self.fault(asked)
        if answer is not None:
            return answer
        try:
            self._log_in(asked)
            answer = Answer.json(200, self._route(asked))
        except Refusal as refusal:
            answer = refusal.answer
        self.after(asked)
        return answer

    def edit(self, uid: str, **changes: Any) -> None:
        """Save a dashboard as a person does in the browser."""
        found = self.dashboards[uid]
        self._store({**deepcopy(found["dashboard"]), **changes}, found["folderUid"], "")

    def _log_in(self, asked: Asked) -> None:
        given = asked.headers.get("authorization", "")
        basic = base64.b64encode(":".join(PASSWORD).encode()).decode()
        if given not in (f"Bearer {TOKEN}", f"Basic {basic}"):
            raise Refusal(401, "Invalid API key" if given.startswith("Bearer") else "Invalid username or password")

    def _route(self, asked: Asked) -> Any:
        parts = urlsplit(asked.path)
        for method, pattern, role, handler in self._routes():
            matched = re.fullmatch(pattern, parts.path)
            if matched and method == asked.method:
                if ("Viewer", "Editor", "Admin").index(self.role) < ("Viewer", "Editor", "Admin").index(role):
                    raise Refusal(403, f"You'll need additional permissions to perform this action. Permissions needed: {role}")
                arguments = [unquote(group) for group in matched.groups()]
                if method == "GET":
                    return handler(*arguments, query=parse_qs(parts.query))
                if not asked.headers.get("content-type", "").startswith("application/json"):
                    raise Refusal(400, "bad request data")
                try:
                    body = json.loads(asked.body)
                except ValueError:
                    raise Refusal(400, "bad request data") from None
                return handler(*arguments, body=body)
        raise Refusal(404, "Not found")

    def _routes(self) -> list[tuple[str, str, str, Callable[..., Any]]]:
        return [
            ("GET", "/api/folders", "Viewer", self._list_folders),
            ("GET", "/api/folders/([^/]+)", "Viewer", self._get_folder),
            ("POST", "/api/folders", "Editor", self._create_folder),
            ("PUT", "/api/folders/([^/]+)", "Editor", self._update_folder),
            ("GET", "/api/datasources/uid/([^/]+)", "Admin", self._get_data_source),
            ("POST", "/api/datasources", "Admin", self._create_data_source),
            ("PUT", "/api/datasources/uid/([^/]+)", "Admin", self._update_data_source),
            ("GET", "/api/dashboards/uid/([^/]+)", "Viewer", self._get_dashboard),
            ("GET", "/api/dashboards/uid/([^/]+)/versions", "Viewer", self._get_versions),
            ("POST", "/api/dashboards/db", "Editor", self._save_dashboard),
            ("GET", "/api/annotations", "Viewer", self._find_annotations),
            ("POST", "/api/annotations", "Editor", self._add_annotation),
        ]

    # -- folders -----------------------------------------------------------------------------------------------------------

    def _list_folders(self, *, query: dict[str, list[str]]) -> Any:
        return [{key: folder[key] for key in ("id", "uid", "title")} for folder in self.folders.values()]

    def _get_folder(self, uid: str, *, query: dict[str, list[str]]) -> Any:
        if uid not in self.folders:
            raise Refusal(404, "folder not found", status="not-found")
        return self.folders[uid]

    def _create_folder(self, *, body: Body) -> Any:
        if not body.get("title"):
            raise Refusal(400, "folder title cannot be empty")
        uid = body.get("uid") or f"generated-{self._ids}"
        if uid in self.folders or any(folder["title"] == body["title"] for folder in self.folders.values()):
            raise Refusal(409, "a folder with the same name already exists in the current location")
        self.folders[uid] = {"id": self._id(), "uid": uid, "title": body["title"], "version": 1, "canSave": True}
        return self.folders[uid]

    def _update_folder(self, uid: str, *, body: Body) -> Any:
        folder = self._get_folder(uid, query={})
        if body.get("version") != folder["version"] and not body.get("overwrite"):
            raise Refusal(412, "The folder has been changed by someone else", status="version-mismatch")
        folder.update(title=body["title"], version=folder["version"] + 1)
        return folder

    # -- data sources ------------------------------------------------------------------------------------------------------

    def _get_data_source(self, uid: str, *, query: dict[str, list[str]]) -> Any:
        if uid not in self.data_sources:
            raise Refusal(404, "Data source not found")
        return self.data_sources[uid]

    def _create_data_source(self, *, body: Body) -> Any:
        if not all(body.get(key) for key in ("name", "type", "access")):
            raise Refusal(400, "bad request data")
        if any(found["name"] == body["name"] or found["uid"] == body.get("uid") for found in self.data_sources.values()):
            raise Refusal(409, "data source with the same name already exists")
        uid = body.get("uid") or f"generated-{self._ids}"
        defaults = {"isDefault": False, "basicAuth": False, "readOnly": False, "jsonData": {}, "secureJsonFields": {}}
        self.data_sources[uid] = {**defaults, **body, "uid": uid, "id": self._id(), "orgId": 1, "version": 1}
        return {"datasource": self.data_sources[uid], "id": self._ids, "message": "Datasource added", "name": body["name"]}

    def _update_data_source(self, uid: str, *, body: Body) -> Any:
        found = self._get_data_source(uid, query={})
        if found["readOnly"]:
            raise Refusal(403, "Cannot update read-only data source")
        if body.get("version") and body["version"] != found["version"]:
            raise Refusal(409, "Datasource has already been updated by someone else. Please reload and try again")
        found.update({**body, "uid": uid, "version": found["version"] + 1})
        return {"datasource": found, "id": found["id"], "message": "Datasource updated", "name": found["name"]}

    # -- dashboards --------------------------------------------------------------------------------------------------------

    def _get_dashboard(self, uid: str, *, query: dict[str, list[str]]) -> Any:
        if uid not in self.dashboards:
            raise Refusal(404, "Dashboard not found")
        found = self.dashboards[uid]
        meta = {"folderUid": found["folderUid"], "version": found["dashboard"]["version"], "provisioned": found.get("provisioned", False)}
        return {"dashboard": found["dashboard"], "meta": {**meta, "isStarred": False, "url": f"/d/{uid}/x"}}

    def _get_versions(self, uid: str, *, query: dict[str, list[str]]) -> Any:
        if uid not in self.history:
            raise Refusal(404, "No versions found for dashboardId 0")
        kept = [{key: v[key] for key in ("version", "message")} for v in reversed(self.history[uid])]
        return {"continueToken": "", "versions": kept[: int(query.get("limit", ["0"])[0]) or None]}

    def _save_dashboard(self, *, body: Body) -> Any:
        board, overwrite = body.get("dashboard"), body.get("overwrite", False)
        if not isinstance(board, dict) or not board.get("title"):
            raise Refusal(400, "Dashboard title cannot be empty", status="empty-name")
        uid = board.get("uid") or f"generated-{self._ids}"
        if len(uid) > 40:
            raise Refusal(400, "uid too long, max 40 characters")
        if len(body.get("message", "")) > 500:
            raise Refusal(400, "message too long, max 500 characters")
        folder = body.get("folderUid", "")
        if folder and folder not in self.folders:
            raise Refusal(400, "folder not found", status="not-found")
        known = self.dashboards.get(uid)
        if board.get("id") and (known is None or known["dashboard"]["id"] != board["id"]):
            raise Refusal(404, "Dashboard not found", status="not-found")
        if known is not None and known.get("provisioned"):
            raise Refusal(400, "Cannot save provisioned dashboard")
        if known is not None and not overwrite and board.get("version") != known["dashboard"]["version"]:
            raise Refusal(412, "The dashboard has been changed by someone else", status="version-mismatch")
        for other, found in self.dashboards.items():
            if other != uid and found["folderUid"] == folder and found["dashboard"]["title"] == board["title"] and not overwrite:
                raise Refusal(412, "A dashboard with the same name in the folder already exists", status="name-exists")
        saved = self._store(board, folder, body.get("message", ""), uid=uid)
        return {"id": saved["id"], "uid": uid, "url": f"/d/{uid}/x", "status": "success", "version": saved["version"], "slug": "x"}

    def _store(self, board: Body, folder: str, message: str, *, uid: str = "") -> Body:
        uid = uid or board["uid"]
        known = self.dashboards.get(uid)
        number, version = (known["dashboard"]["id"], known["dashboard"]["version"] + 1) if known else (self._id(), 1)
        saved = {**board, "uid": uid, "id": number, "version": version}
        self.dashboards[uid] = {"dashboard": saved, "folderUid": folder}
        self.history.setdefault(uid, []).append({"version": version, "message": message, "data": deepcopy(saved)})
        return saved

    # -- annotations -------------------------------------------------------------------------------------------------------

    def _find_annotations(self, *, query: dict[str, list[str]]) -> Any:
        if unknown := set(query) - {"from", "to", "limit", "tags", "type", "dashboardUID", "dashboardId", "panelId", "alertId", "userId"}:
            raise Refusal(400, f"unknown parameters {unknown}")
        begin, end = (int(query[name][0]) if name in query else None for name in ("from", "to"))
        found = [
            note
            for note in reversed(self.annotations)
            if set(query.get("tags", ())) <= set(note["tags"])
            and (begin is None or note["time"] >= begin)
            and (end is None or note["time"] <= end)
        ]
        return found[: int(query.get("limit", ["100"])[0])]

    def _add_annotation(self, *, body: Body) -> Any:
        if not body.get("text"):
            raise Refusal(400, "Failed to save annotation", error="text field should not be empty")
        note = {"id": self._id(), "dashboardUID": body.get("dashboardUID", ""), "time": body["time"], "tags": list(body.get("tags", ()))}
        self.annotations.append({**note, "timeEnd": body.get("timeEnd", body["time"]), "text": body["text"]})
        return {"message": "Annotation added", "id": note["id"]}

    def _id(self) -> int:
        self._ids += 1
        return self._ids
