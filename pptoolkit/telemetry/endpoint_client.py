"""Asking a rank's endpoint over HTTP or HTTPS: one GET a call, with a time limit, and errors that say what to do."""

import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from typing import Any
from urllib.parse import urlsplit

from pptoolkit.errors import ConfigError, PPToolkitError
from pptoolkit.telemetry.security import ClientCredentials


class EndpointError(PPToolkitError):
    """An endpoint that cannot be asked, or does not answer as one.

    Args:
        message: With the address and what to do.
        refused: The endpoint is there and turned us away, so that trying again is no use.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(frozen=True, slots=True)
class Answer:
    body: bytes
    headers: HTTPMessage


class EndpointClient:
    """Asks endpoints with one set of credentials.

    Args:
        credentials: What is shown to them.
        timeout_s: Longest wait for an answer.
    """

    def __init__(self, credentials: ClientCredentials, *, timeout_s: float = 5.0) -> None:
        handlers: list[urllib.request.BaseHandler] = [
            urllib.request.HTTPSHandler(context=credentials.context()),
            # Straight to the rank: a proxy of the environment is for the outside world.
            urllib.request.ProxyHandler({}),
        ]
        self._opener = urllib.request.build_opener(*handlers)
        self._token, self._timeout_s = credentials.token, timeout_s

    def get(self, url: str) -> Answer:
        """Return what ``url`` answers.

        Raises:
            EndpointError: If it does not answer with 200 in time.
        """
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            with self._opener.open(urllib.request.Request(url, headers=headers), timeout=self._timeout_s) as answer:
                return Answer(answer.read(), answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                raise _rejected(url, error.code, error.read(500).decode(errors="replace").strip()) from None
        except (OSError, HTTPException) as error:
            raise _unanswered(url, error) from error

    def get_json(self, url: str) -> Any:
        """Return the JSON that ``url`` answers.

        Raises:
            EndpointError: As :meth:`get`, or if it is no JSON.
        """
        try:
            return json.loads(self.get(url).body)
        except ValueError as error:
            raise EndpointError(f"{url} did not answer with JSON; is it an endpoint of pptoolkit?", refused=True) from error


def base_url(text: str) -> str:
    """Return ``text`` as the base address of an endpoint, e.g. ``"http://node0:9100"``.

    Raises:
        ConfigError: If it is none.
    """
    url = text if "://" in text else f"http://{text}"
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("http", "https") or not parts.hostname or port is None:
        raise ConfigError(f"{text!r} is no address of a rank; write it as http://HOST:PORT, e.g. http://node0:9100 (https:// with TLS)")
    return f"{parts.scheme}://{parts.netloc}"


def _rejected(url: str, code: int, text: str) -> EndpointError:
    if code == 401:
        return EndpointError(f"{url} asks for its token (401); give it with --token-file, or in PPTOOLKIT_TOKEN", refused=True)
    if code == 404:
        return EndpointError(f"{url} is not there (404); is it rank 0 of a run of this release?", refused=True)
    return EndpointError(f"{url} answered {code}: {text}", refused=code < 500)


def _unanswered(url: str, error: Exception) -> EndpointError:
    cause = getattr(error, "reason", None) or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return EndpointError(f"{url}: its certificate is not trusted: {cause.verify_message}; name its CA with --ca", refused=True)
    if isinstance(cause, ssl.SSLError):
        reason = (cause.reason or str(cause)).lower().replace("_", " ")
        hint = "is it http://?" if "wrong version" in reason or "record layer" in reason else "does it ask for --cert and --key?"
        return EndpointError(f"{url}: TLS failed: {reason}; {hint}", refused=True)
    if isinstance(cause, TimeoutError):
        return EndpointError(f"{url} does not answer in time")
    if isinstance(cause, ConnectionResetError | HTTPException):
        return EndpointError(f"{url} hung up ({type(cause).__name__}); does it speak https://?")
    return EndpointError(f"{url} cannot be reached: {getattr(cause, 'strerror', None) or cause}")
