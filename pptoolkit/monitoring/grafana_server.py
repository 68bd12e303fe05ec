"""One Grafana server, reached through grafana-api. The only module that knows that library; docs/adr/0010 says why it stays small.

Every call has a time limit, and every failure becomes one sentence that says what was tried, what Grafana said and what to do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from pptoolkit.errors import ConfigError, MonitoringError
from pptoolkit.telemetry.settings import is_http_url

DEFAULT_URL = "http://localhost:3000"
_REMEDIES = {
    401: "is the token (or the password) right, and not expired? Administration > Service accounts makes one",
    403: "the account may not do this: dashboards, folders and annotations need the role Editor, data sources the role Admin",
    404: "is this the address of Grafana, with the path that it is served under?",
    409: "something else has that name already; rename one of the two in Grafana",
    412: "someone else changed it in the meantime, and nothing was overwritten; run the command again",
}


class GrafanaError(MonitoringError):
    """Grafana refused, or did not answer.

    Args:
        message: What was tried, what Grafana said, what to do.
        code: The HTTP status; None where there was no answer.
        reason: Grafana's own word for a 412, e.g. ``"version-mismatch"``.
    """

    def __init__(self, message: str, *, code: int | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """How to log in: a service account's token, or a user and a password."""

    token: str = ""
    user: str = ""
    password: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Credentials":
        """Read GRAFANA_TOKEN, or GRAFANA_USER and GRAFANA_PASSWORD; the token wins.

        Raises:
            ConfigError: If neither is there.
        """
        found = cls(
            token=environment.get("GRAFANA_TOKEN", "").strip(),
            user=environment.get("GRAFANA_USER", ""),
            password=environment.get("GRAFANA_PASSWORD", ""),
        )
        if not found.token and not (found.user and found.password):
            raise ConfigError("no credentials for Grafana; set GRAFANA_TOKEN, or GRAFANA_USER and GRAFANA_PASSWORD, in the environment")
        try:
            "".join((found.token, found.user, found.password)).encode("latin-1")
        except UnicodeEncodeError:
            raise ConfigError(
                "GRAFANA_TOKEN, GRAFANA_USER or GRAFANA_PASSWORD has a character that HTTP cannot carry; copy it again"
            ) from None
        return found

    @property
    def auth(self) -> str | tuple[str, str]:
        return self.token or (self.user, self.password)


class GrafanaServer:
    """What `grafana push` needs of Grafana's HTTP API.

    Args:
        url: Address, with the path that Grafana is served under.
        credentials: How to log in.
        timeout_s: Longest time to connect, and longest silence in an answer.

    Raises:
        ConfigError: If the address is none, or grafana-api is not installed.
    """

    def __init__(self, url: str, credentials: Credentials, *, timeout_s: float = 10.0) -> None:
        if not is_http_url(url):
            raise ConfigError(f"url={url!r} is no address of Grafana; write it like {DEFAULT_URL}")
        parts = urlsplit(url)
        if parts.username or parts.password:
            raise ConfigError("the address of Grafana holds a password; leave it out, and set GRAFANA_USER and GRAFANA_PASSWORD instead")
        try:
            from grafana_api.grafana_face import GrafanaFace
        except ImportError as error:
            raise ConfigError(
                "pushing needs grafana-api, which is not installed; install it with: pip install 'pptoolkit[grafana]'"
            ) from error
        path = parts.path.strip("/")
        host = parts.netloc  # with its port: the library's own joining of the two knows no IPv6
        prefix = f"{path}/" if path else ""
        self.url, self._timeout_s = url.rstrip("/"), timeout_s
        self._face = GrafanaFace(credentials.auth, host=host, url_path_prefix=prefix, protocol=parts.scheme, timeout=timeout_s)

    # -- folders -----------------------------------------------------------------------------------------------------------

    def find_folder(self, uid: str) -> dict[str, Any] | None:
        return self._find(f"look for folder {uid}", lambda: self._face.folder.get_folder(_part(uid)))

    def list_folders(self) -> list[dict[str, Any]]:
        return list(self._ask("list the folders", self._face.folder.get_all_folders))

    def create_folder(self, uid: str, title: str) -> dict[str, Any]:
        return dict(self._ask(f"create folder {title!r}", lambda: self._face.folder.create_folder(title, uid)))

    def rename_folder(self, uid: str, title: str, *, version: int) -> None:
        self._ask(f"rename folder {uid} to {title!r}", lambda: self._face.folder.update_folder(_part(uid), title, version=version))

    # -- data sources ------------------------------------------------------------------------------------------------------

    def find_data_source(self, uid: str) -> dict[str, Any] | None:
        # grafana-api asks by number or by name only; the number is no longer known to newer servers.
        return self._find(f"look for data source {uid}", lambda: self._face.api.GET(f"/datasources/uid/{_part(uid)}"))

    def create_data_source(self, body: Mapping[str, Any]) -> None:
        self._ask(f"create data source {body['name']!r}", lambda: self._face.datasource.create_datasource(dict(body)))

    def update_data_source(self, uid: str, body: Mapping[str, Any]) -> None:
        self._ask(f"update data source {body['name']!r}", lambda: self._face.api.PUT(f"/datasources/uid/{_part(uid)}", json=dict(body)))

    # -- dashboards --------------------------------------------------------------------------------------------------------

    def find_dashboard(self, uid: str) -> dict[str, Any] | None:
        """Return ``dashboard`` and ``meta``."""
        return self._find(f"look for dashboard {uid}", lambda: self._face.dashboard.get_dashboard(_part(uid)))

    def last_message(self, uid: str) -> str:
        """Return what the latest version of a dashboard was saved with; "" where that cannot be told."""
        path = f"/dashboards/uid/{_part(uid)}/versions?limit=1"
        answer: Any = self._find(f"read the history of dashboard {uid}", lambda: self._face.api.GET(path))
        # Older servers answer with the list itself.
        versions = answer.get("versions", []) if isinstance(answer, dict) else answer
        return str(versions[0].get("message", "")) if versions else ""

    def save_dashboard(self, body: Mapping[str, Any], *, folder_uid: str, message: str, overwrite: bool) -> None:
        request = {"dashboard": dict(body), "folderUid": folder_uid, "message": message, "overwrite": overwrite}
        self._ask(f"save dashboard {body['title']!r}", lambda: self._face.dashboard.update_dashboard(request))

    # -- annotations -------------------------------------------------------------------------------------------------------

    def find_annotations(self, tags: Sequence[str], *, from_ms: int, to_ms: int, limit: int) -> list[dict[str, Any]]:
        quoted = [quote(tag, safe="") for tag in tags]
        return list(
            self._ask(
                "read annotations",
                lambda: self._face.annotations.get_annotation(time_from=from_ms, time_to=to_ms, tags=quoted, limit=limit),
            )
        )

    def add_annotation(self, *, time_ms: int, tags: Sequence[str], text: str) -> None:
        # The library's own call sends the two ids of a dashboard as null, which means the whole organisation, but servers differ on that.
        body = {"time": time_ms, "tags": list(tags), "text": text}
        self._ask("add an annotation", lambda: self._face.api.POST("/annotations", json=body))

    # -- asking ------------------------------------------------------------------------------------------------------------

    def _find(self, doing: str, call: Callable[[], Any]) -> dict[str, Any] | None:
        """Return the answer, or None where Grafana says in its own words that there is no such thing."""
        try:
            found: dict[str, Any] = self._ask(doing, call)
            return found
        except GrafanaError as error:
            if error.code == 404 and error.reason == "json":
                return None
            raise

    def _ask(self, doing: str, call: Callable[[], Any]) -> Any:
        import requests
        from grafana_api.grafana_api import GrafanaException

        try:
            return call()
        except GrafanaException as error:
            raise self._refused(doing, error.status_code, error.response) from error
        except requests.exceptions.Timeout as error:
            raise GrafanaError(
                f"cannot {doing}: Grafana at {self.url} did not answer within {self._timeout_s:g} s; is it overloaded?"
            ) from error
        except requests.exceptions.SSLError as error:
            raise GrafanaError(f"cannot {doing}: {self.url} speaks no TLS that can be trusted: {error}; check its certificate") from error
        except requests.exceptions.ConnectionError as error:
            raise GrafanaError(
                f"cannot {doing}: there is no server at {self.url}; start Grafana, or give its address with --url"
            ) from error
        # The library trips over an answer that is text where it expects JSON: a login page, a proxy's own error.
        except (ValueError, TypeError, KeyError, requests.exceptions.RequestException) as error:
            raise GrafanaError(
                f"cannot {doing}: what answers at {self.url} is not Grafana's API ({type(error).__name__}); check --url"
            ) from error

    def _refused(self, doing: str, code: int, response: Any) -> GrafanaError:
        body = response if isinstance(response, dict) else {}
        said = " ".join(str(body.get("message") or response or "").split())[:300]
        remedy = _REMEDIES.get(code, "see Grafana's own log" if code >= 500 else "see Grafana's documentation for this version")
        reason = str(body.get("status", ""))
        if code == 412 and reason == "name-exists":
            remedy = "another dashboard in that folder has this title; rename or remove it in Grafana"
        if code == 404 and "message" in body:
            reason = "json"
        return GrafanaError(f"cannot {doing}: Grafana at {self.url} says {code} {said!r}; {remedy}", code=code, reason=reason)


def _part(uid: str) -> str:
    """Return ``uid`` as one part of a path."""
    return quote(uid, safe="")
