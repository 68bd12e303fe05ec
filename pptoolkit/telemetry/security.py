"""Who may read an endpoint that leaves the machine: TLS, mutual TLS, a bearer token. Both ends of it: server and client.

Loopback needs neither; any other address needs at least one of them. A token alone keeps strangers out, but travels readable.
"""

import hmac
import ipaddress
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from pptoolkit.errors import ConfigError

LEAST_TOKEN_CHARACTERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSecurity:
    """What an endpoint asks of its clients.

    Args:
        tls_cert: Certificate chain, PEM file; with it the endpoint speaks HTTPS.
        tls_key: Its private key, PEM file.
        tls_client_ca: CA whose clients are let in (mutual TLS); needs ``tls_cert``.
        token: Clients must send ``Authorization: Bearer <token>``.
    """

    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    token: str = field(default="", repr=False)

    @property
    def uses_tls(self) -> bool:
        return bool(self.tls_cert)

    @property
    def locks(self) -> bool:
        """Whether anything at all stands between a stranger and the endpoint, or between a listener and the wire."""
        return self.uses_tls or bool(self.token)

    def check(self, *, where: str) -> None:
        """Check that the files are there and fit each other; ``where`` names the settings in messages.

        Raises:
            ConfigError: If they do not, or the token is guessable.
        """
        if bool(self.tls_cert) != bool(self.tls_key):
            given, absent = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            raise ConfigError(f"{where}.{given} is set without {where}.{absent}; TLS needs both, as PEM files")
        if self.tls_client_ca and not self.tls_cert:
            raise ConfigError(
                f"{where}.tls_client_ca is set without {where}.tls_cert; mutual TLS needs the server's certificate and key too"
            )
        if self.token and (len(self.token) < LEAST_TOKEN_CHARACTERS or not self.token.isascii() or not self.token.isprintable()):
            raise ConfigError(
                f"{where}.token is shorter than {LEAST_TOKEN_CHARACTERS} characters, or not plain text; make one: openssl rand -hex 32"
            )
        self.server_context(where=where)

    def server_context(self, *, where: str = "telemetry") -> ssl.SSLContext | None:
        """Return how the server speaks TLS; None without a certificate.

        Raises:
            ConfigError: If a file is missing, or key and certificate do not fit.
        """
        if not self.uses_tls:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"cannot use {where}.tls_cert={self.tls_cert!r} with tls_key={self.tls_key!r}: {_reason(error)}") from error
        if self.tls_client_ca:
            context.verify_mode = ssl.CERT_REQUIRED
            _load_ca(context, self.tls_client_ca, f"{where}.tls_client_ca")
        return context

    def admits(self, authorization: str) -> bool:
        """Whether a request with this Authorization header may pass."""
        if not self.token:
            return True
        scheme, _, sent = authorization.partition(" ")
        # In constant time: the answer's delay must not tell how much of a guess was right.
        return scheme.lower() == "bearer" and hmac.compare_digest(sent.strip().encode(), self.token.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """What a client shows to an endpoint, and whom it trusts.

    Args:
        token: Sent as bearer token.
        ca: CA of the server's certificate, PEM file; default: the system's CAs.
        cert: The client's own certificate, for mutual TLS.
        key: Its private key.
    """

    token: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        """Return how the client speaks TLS: certificate and host name are always checked.

        Raises:
            ConfigError: If a file is missing, or key and certificate do not fit.
        """
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.ca:
            _load_ca(context, self.ca, "--ca")
        if bool(self.cert) != bool(self.key):
            raise ConfigError("--cert and --key belong together: give both, as PEM files")
        if self.cert:
            try:
                context.load_cert_chain(self.cert, self.key)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"cannot use --cert {self.cert} with --key {self.key}: {_reason(error)}") from error
        return context


def read_token(*, file: str, variable: str, where: str) -> str:
    """Return the token from a file or, without one, from an environment variable; empty where neither is named.

    Args:
        file: Path; white space around the token is dropped.
        variable: Name of an environment variable that must be set.
        where: Names the setting in messages, e.g. ``"telemetry"``.

    Raises:
        ConfigError: If what is named is not there or empty.
    """
    if file:
        try:
            token = Path(file).expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {where}.token_file={file!r}: {_reason(error, 'file with the token')}") from error
        if not token:
            raise ConfigError(f"{where}.token_file={file!r} is empty; write the token into it: openssl rand -hex 32 > {file}")
        return token
    if variable:
        token = os.environ.get(variable, "").strip()
        if not token:
            raise ConfigError(f"{where}.token_env={variable!r}: this environment variable is not set on this host; export it on every host")
        return token
    return ""


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach what listens at ``address``."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def is_unspecified(address: str) -> bool:
    """Whether ``address`` means every address of the machine, so that it tells nobody where to connect."""
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:
        return False


def _load_ca(context: ssl.SSLContext, path: str, name: str) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot use {name}={path!r}: {_reason(error)}") from error


def _reason(error: Exception, kind: str = "PEM file") -> str:
    remedy = f"name a {kind} that this process can read"
    if isinstance(error, FileNotFoundError):
        return f"there is no such file; {remedy}"
    return f"{getattr(error, 'strerror', None) or getattr(error, 'reason', None) or error}; {remedy}"
