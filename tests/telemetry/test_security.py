import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pptoolkit.config import TelemetryConfig
from pptoolkit.errors import ConfigError
from pptoolkit.telemetry.endpoint_client import EndpointClient, EndpointError, base_url
from pptoolkit.telemetry.exporter import Exporter, Response
from pptoolkit.telemetry.security import ClientCredentials, EndpointSecurity
from pptoolkit.telemetry.settings import TelemetrySettings
from tests.support.certificates import Certificates, make_certificates

TOKEN = "0123456789abcdef-secret"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def serve() -> Iterator[Any]:
    started: list[Exporter] = []

    def start(security: EndpointSecurity) -> Exporter:
        routes = {"/": lambda request: Response(b'{"fine": true}')}
        started.append(Exporter(routes, address="127.0.0.1", port=0, security=security))
        return started[-1]

    yield start
    for exporter in started:
        exporter.close()


def ask(exporter: Exporter, **credentials: str) -> Any:
    return EndpointClient(ClientCredentials(**credentials), timeout_s=20).get_json(f"{exporter.url}/")


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.3", "node0.example"])
def test_an_address_beyond_loopback_is_refused_without_a_lock(address: str, certificates: Certificates) -> None:
    with pytest.raises(ConfigError, match=r"can be reached from other machines, and nothing protects it; set telemetry.tls_cert"):
        TelemetrySettings(address=address)
    assert TelemetrySettings(address=address, token=TOKEN).address == address
    assert TelemetrySettings(address=address, tls_cert=certificates.server, tls_key=certificates.server_key).security.uses_tls


def test_loopback_needs_no_lock() -> None:
    for address in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
        assert not TelemetrySettings(address=address).security.locks


def test_the_token_lets_in_and_its_absence_or_another_keeps_out(serve: Any) -> None:
    exporter = serve(EndpointSecurity(token=TOKEN))
    assert ask(exporter, token=TOKEN) == {"fine": True}
    for wrong in ("", TOKEN[:-1], TOKEN + "x", "Basic"):
        with pytest.raises(EndpointError, match="asks for its token \\(401\\); give it with --token-file") as refused:
            ask(exporter, token=wrong)
        assert refused.value.refused
        assert TOKEN not in str(refused.value)


def test_tls_is_spoken_only_with_who_trusts_the_certificate(serve: Any, certificates: Certificates) -> None:
    exporter = serve(EndpointSecurity(tls_cert=certificates.server, tls_key=certificates.server_key))
    assert exporter.url.startswith("https://")
    assert ask(exporter, ca=certificates.ca) == {"fine": True}
    for stranger in ({}, {"ca": certificates.other_ca}):
        with pytest.raises(EndpointError, match=r"is not trusted: .*; name its CA with --ca"):
            ask(exporter, **stranger)
    plain = EndpointClient(ClientCredentials(), timeout_s=20)
    with pytest.raises(EndpointError, match="does it speak https"):
        plain.get(exporter.url.replace("https", "http") + "/")


def test_a_name_that_the_certificate_does_not_have_is_refused(serve: Any, tmp_path: Path) -> None:
    elsewhere = make_certificates(tmp_path, names="DNS:other.example")
    exporter = serve(EndpointSecurity(tls_cert=elsewhere.server, tls_key=elsewhere.server_key))
    with pytest.raises(EndpointError, match=r"is not trusted: .*127\.0\.0\.1"):
        ask(exporter, ca=elsewhere.ca)


def test_mutual_tls_asks_for_a_certificate_of_its_ca(serve: Any, certificates: Certificates) -> None:
    lock = EndpointSecurity(tls_cert=certificates.server, tls_key=certificates.server_key, tls_client_ca=certificates.ca, token=TOKEN)
    exporter = serve(lock)
    mine = {"ca": certificates.ca, "cert": certificates.client, "key": certificates.client_key}
    assert ask(exporter, token=TOKEN, **mine) == {"fine": True}
    with pytest.raises(EndpointError):
        ask(exporter, token=TOKEN, ca=certificates.ca)
    with pytest.raises(EndpointError, match="asks for its token"):
        ask(exporter, **mine)


def test_a_client_that_never_ends_the_handshake_holds_up_nobody(serve: Any, certificates: Certificates) -> None:
    exporter = serve(EndpointSecurity(tls_cert=certificates.server, tls_key=certificates.server_key))
    silent = [socket.create_connection(("127.0.0.1", exporter.port)) for _ in range(5)]
    try:
        began = time.monotonic()
        assert ask(exporter, ca=certificates.ca) == {"fine": True}
        assert time.monotonic() - began < 20
    finally:
        for connection in silent:
            connection.close()


def test_the_token_is_in_no_text_that_settings_print() -> None:
    assert TOKEN not in repr(TelemetrySettings(token=TOKEN))
    assert TOKEN not in repr(TelemetrySettings(token=TOKEN).security)
    assert TOKEN not in repr(ClientCredentials(token=TOKEN))


def test_a_job_file_names_where_the_token_is_and_never_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text(f"  {TOKEN}\n")
    assert TelemetrySettings.from_config(TelemetryConfig(address="0.0.0.0", token_file=str(file))).token == TOKEN
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    assert TelemetrySettings.from_config(TelemetryConfig(address="0.0.0.0", token_env="MY_TOKEN")).token == TOKEN
    assert "token" not in TelemetryConfig.model_fields


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"token_env": "NOT_SET_ANYWHERE"}, "telemetry.token_env='NOT_SET_ANYWHERE': this environment variable is not set"),
        ({"token_file": "/nowhere/token"}, "cannot read telemetry.token_file='/nowhere/token': there is no such file"),
        ({"tls_cert": "/nowhere/cert.pem"}, "telemetry.tls_cert is set without telemetry.tls_key"),
        ({"tls_cert": "/nowhere/c.pem", "tls_key": "/nowhere/k.pem"}, "cannot use telemetry.tls_cert='/nowhere/c.pem'.*no such file"),
        ({"tls_client_ca": "/nowhere/ca.pem"}, "tls_client_ca is set without telemetry.tls_cert"),
    ],
)
def test_a_wrong_lock_is_found_before_training_and_named(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TelemetrySettings.from_config(TelemetryConfig(**wrong))


def test_a_key_of_another_certificate_and_a_guessable_token_are_refused(certificates: Certificates) -> None:
    with pytest.raises(ConfigError, match=r"cannot use telemetry.tls_cert=.* with tls_key="):
        TelemetrySettings(tls_cert=certificates.server, tls_key=certificates.client_key)
    with pytest.raises(ConfigError, match="shorter than 16 characters"):
        TelemetrySettings(token="secret")


@pytest.mark.parametrize("wrong", ["node0", "ftp://node0:21", "http://node0", "http://:9100", "http://node0:port"])
def test_what_is_no_address_of_a_rank_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="write it as http://HOST:PORT"):
        base_url(wrong)
    assert base_url("node0:9100") == "http://node0:9100"
    assert base_url("https://[::1]:9100/metrics") == "https://[::1]:9100"
