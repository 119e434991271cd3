"""Tests of TLS on the HTTP and gRPC ports: who is accepted, with which certificates, and the
errors for wrong ones. The tests of how connections continue are in test_tls_connections.py."""

from __future__ import annotations

import http.client
import pathlib
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import tritonclient.grpc
from conftest import ROOT, StartServer

from server import Reply, Server
from tls_clients import (
    ECHOES,
    connect,
    context,
    grpc_options,
    https,
    over_grpc,
    over_http,
    status_of,
    vector,
    wait_until_open,
    write_echo,
)
from tls_files import KEY_KINDS, Authority, Identity, encrypted

pytestmark = pytest.mark.galatea_only

#: Certificates of version 1, which the library that makes the others can't make.
VERSION_1 = ROOT / "crates" / "door" / "tests" / "certificates"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs the certificates of servers and clients."""
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """No client or server trusts it."""
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A model that returns its input."""
    return write_echo(tmp_path_factory.mktemp("echo"))


@pytest.fixture(scope="module")
def secured(
    start_server: StartServer, repository: pathlib.Path, authority: Authority
) -> Iterator[Server]:
    """Both ports use TLS."""
    identity = authority.issue("server")
    with start_server(repository, *identity.flags("http"), *identity.flags("grpc")) as server:
        yield wait_until_open(server)
    assert server.process.returncode == 0


@pytest.fixture(scope="module")
def mutual(
    start_server: StartServer, repository: pathlib.Path, authority: Authority
) -> Iterator[Server]:
    """Both ports require client certificates."""
    identity = authority.issue("server")
    flags = [
        flag
        for door in ("http", "grpc")
        for flag in (
            *identity.flags(door),
            f"--{door}-use-ssl-mutual=true",
            f"--{door}-root-cert={authority.file}",
        )
    ]
    # If the other flag is set, this one doesn't let clients in without a certificate.
    with start_server(repository, *flags, "--grpc-use-ssl=false", "--log-verbose=1") as server:
        yield wait_until_open(server)
    assert server.process.returncode == 0


@pytest.mark.parametrize("echo", ECHOES)
# row: GRPC-20 SEC-03
def test_every_client_speaks_tls(secured: Server, authority: Authority, echo: str) -> None:
    """16 MiB are sent in both directions."""
    for count in (4, 4 << 20):
        data = vector(count)
        assert numpy.array_equal(ECHOES[echo](secured, authority.file, None, data), data)


@pytest.mark.parametrize("echo", ECHOES)
# row: GRPC-20
def test_every_client_speaks_mutual_tls(mutual: Server, authority: Authority, echo: str) -> None:
    """Clients present their certificate."""
    client = authority.issue("client")
    data = vector()
    assert numpy.array_equal(ECHOES[echo](mutual, authority.file, client, data), data)


@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize("who", ["without certificate", "of a stranger", "expired"])
def test_other_clients_are_not_let_in(
    mutual: Server, authority: Authority, stranger: Authority, echo: str, who: str
) -> None:
    """Neither port serves them."""
    client = {
        "without certificate": None,
        "of a stranger": stranger.issue("client"),
        "expired": authority.issue("client", days=-1),
    }[who]
    with pytest.raises(Exception) as caught:  # noqa: PT011
        ECHOES[echo](mutual, authority.file, client, vector())
    assert not isinstance(caught.value, AssertionError)


def test_failed_handshakes_are_logged_once_for_each_kind(
    mutual: Server, authority: Authority
) -> None:
    """This is in the verbose log, because clients can cause as many lines as they want."""
    for _ in range(3):
        with pytest.raises((ssl.SSLError, OSError)), connect(
            mutual.http_port, context(authority.file)
        ) as stream:
            stream.sendall(b"GET / HTTP/1.1\r\n\r\n")
            stream.recv(1)
    text = "HTTP: TLS handshake of a client failed: peer sent no certificates"
    assert mutual.log().count(text) == 1


@pytest.mark.parametrize("echo", ECHOES)
def test_clients_refuse_a_server_of_a_stranger(
    secured: Server, authority: Authority, stranger: Authority, echo: str
) -> None:
    """The server continues to serve."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        ECHOES[echo](secured, stranger.file, None, vector())
    assert not isinstance(caught.value, AssertionError)
    data = vector()
    assert numpy.array_equal(ECHOES[echo](secured, authority.file, None, data), data)


@pytest.mark.parametrize("kind", KEY_KINDS)
def test_kinds_of_keys(
    start_server: StartServer, repository: pathlib.Path, authority: Authority, kind: str
) -> None:
    """Servers and clients have keys of all kinds that OpenSSL creates."""
    identity, client = authority.issue("server", kind), authority.issue("client", kind)
    roots = [f"--{door}-root-cert={authority.file}" for door in ("http", "grpc")]
    flags = [*identity.flags("http"), *identity.flags("grpc"), *roots]
    flags += ["--http-use-ssl-mutual=true", "--grpc-use-ssl-mutual=true"]
    with start_server(repository, *flags) as server:
        wait_until_open(server)
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            settings = context(authority.file, client, maximum_version=version)
            assert status_of(https(server, settings)) == 200
        # The library of gRPC clients doesn't support Ed25519.
        if "Ed25519" not in kind:
            over_grpc(server, authority.file, client, vector())


def test_certificates_of_version_1(start_server: StartServer, repository: pathlib.Path) -> None:
    """`openssl x509 -req` creates them, as in Triton's guides."""
    server_files = Identity(VERSION_1 / "server.pem", VERSION_1 / "server.key", 0)
    client = Identity(VERSION_1 / "client_version_1.pem", VERSION_1 / "client_version_1.key", 0)
    root = VERSION_1 / "roots.pem"
    alone = VERSION_1 / "client_self_signed.pem"
    roots = repository.parent / "roots_and_self_signed.pem"
    roots.write_bytes(root.read_bytes() + alone.read_bytes())
    flags = [
        flag
        for door in ("http", "grpc")
        for flag in (
            *server_files.flags(door),
            f"--{door}-use-ssl-mutual=true",
            f"--{door}-root-cert={roots}",
        )
    ]
    with start_server(repository, *flags) as server:
        wait_until_open(server)
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            for who in (client, Identity(alone, alone.with_suffix(".key"), 0)):
                settings = context(root, who, maximum_version=version)
                assert status_of(https(server, settings)) == 200
        over_grpc(server, root, client, vector())
        # The certificate alone is not enough.
        thief = context(root)
        with pytest.raises(ssl.SSLError):
            thief.load_cert_chain(client.certificate, VERSION_1 / "client.key")


def test_chains(
    start_server: StartServer, repository: pathlib.Path, authority: Authority
) -> None:
    """Clients only need to know the root. Text before the certificates is skipped."""
    between = Authority(repository.parent, "between", authority)
    identity = between.issue("server")
    identity.certificate.write_bytes(b"Certificate:\n  Data\n" + identity.certificate.read_bytes())
    with start_server(repository, *identity.flags("http"), *identity.flags("grpc")) as server:
        wait_until_open(server)
        over_http(server, authority.file, None, vector())
        over_grpc(server, authority.file, None, vector())


@pytest.mark.parametrize("door", ["http", "grpc"])
@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["h2", "http/1.1"], {"http": "http/1.1", "grpc": "h2"}),
        (["http/1.1"], {"http": "http/1.1", "grpc": "refused"}),
        (["h2"], {"http": "refused", "grpc": "h2"}),
        ([], {"http": None, "grpc": "closed"}),
    ],
)
def test_protocols(
    secured: Server, authority: Authority, door: str, names: list[str], chosen: dict[str, Any]
) -> None:
    """The client and the server agree on a protocol."""
    settings = context(authority.file)
    settings.set_alpn_protocols(names)
    port = {"http": secured.http_port, "grpc": secured.grpc_port}[door]
    if chosen[door] == "refused":
        with pytest.raises(ssl.SSLError, match="no application protocol"), connect(port, settings):
            pass
        return
    with connect(port, settings) as stream:
        if chosen[door] == "closed":
            with pytest.raises((ssl.SSLError, OSError)):
                stream.recv(1)
        else:
            assert stream.selected_alpn_protocol() == chosen[door]


@pytest.mark.parametrize("door", ["http", "grpc"])
def test_old_versions_are_refused(secured: Server, authority: Authority, door: str) -> None:
    """The oldest version is 1.2."""
    settings = context(authority.file)
    settings.minimum_version = ssl.TLSVersion.TLSv1
    settings.maximum_version = ssl.TLSVersion.TLSv1_1
    settings.set_ciphers("ALL:@SECLEVEL=0")
    port = {"http": secured.http_port, "grpc": secured.grpc_port}[door]
    # The server reports this; a client that couldn't even try would have a different error.
    with pytest.raises(ssl.SSLError, match="alert"), connect(port, settings):
        pass


def test_plain_http_is_told_so(secured: Server) -> None:
    """The response is one that the client understands."""
    for body in (None, b"x" * 300_000):
        connection = http.client.HTTPConnection("127.0.0.1", secured.http_port, timeout=60)
        connection.request("POST", "/v2", body)
        response = connection.getresponse()
        reply = Reply(response.status, response.headers, response.read())
        assert reply.status == 400
        assert reply.error() == "this port speaks HTTPS, and not HTTP"


def test_plain_grpc_is_not_served(secured: Server, authority: Authority) -> None:
    """Plain HTTP/2 on a port with TLS, and TLS on a plain port."""
    with tritonclient.grpc.InferenceServerClient(secured.grpc_url) as plain:
        with pytest.raises(tritonclient.grpc.InferenceServerException):
            plain.is_server_live(client_timeout=10)
    over_grpc(secured, authority.file, None, vector())


def test_tls_to_plain_ports(server: Server, authority: Authority) -> None:
    """The client fails, and the server continues."""
    with pytest.raises(ssl.SSLError), connect(server.http_port, context(authority.file)):
        pass
    with tritonclient.grpc.InferenceServerClient(
        server.grpc_url, **grpc_options(authority.file, None)
    ) as client:
        with pytest.raises(tritonclient.grpc.InferenceServerException):
            client.is_server_live(client_timeout=10)
    assert server.is_live()
    with socket.create_connection(("127.0.0.1", server.grpc_port)):
        pass


def test_mutual_false_turns_tls_on(
    start_server: StartServer, repository: pathlib.Path, authority: Authority
) -> None:
    """As in Triton."""
    identity = authority.issue("server")
    flags = ["--grpc-use-ssl-mutual=false", *identity.flags("grpc")[1:]]
    with start_server(repository, *flags) as server:
        server.wait_until_ready()
        over_grpc(server, authority.file, None, vector())


def test_an_expired_certificate_is_warned_of(
    start_server: StartServer, repository: pathlib.Path, authority: Authority
) -> None:
    """As in Triton, the server starts, and clients refuse it."""
    identity = authority.issue("server", days=-1)
    with start_server(repository, *identity.flags("http")) as server:
        wait_until_open(server)
        assert f"--http-server-cert '{identity.certificate}' has expired" in server.log()
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            status_of(https(server, context(authority.file)))


@pytest.mark.parametrize("door", ["http", "grpc"])
@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["use-ssl=1"], "--<door>-use-ssl needs --<door>-server-cert"),
        (["use-ssl=1", "server-cert=<cert>"], "--<door>-use-ssl needs --<door>-server-key"),
        (
            ["use-ssl-mutual=1", "server-cert=<cert>", "server-key=<key>"],
            "--<door>-use-ssl-mutual needs --<door>-root-cert",
        ),
        (
            ["use-ssl=1", "server-cert=/no/file", "server-key=<key>"],
            "--<door>-server-cert '/no/file' can't be read: No such file or directory (os error 2)",
        ),
        (
            ["use-ssl=1", "server-cert=<key>", "server-key=<key>"],
            "--<door>-server-cert '<key>' has no certificate in PEM form (BEGIN CERTIFICATE)",
        ),
        (
            ["use-ssl=1", "server-cert=<cert>", "server-key=<cert>"],
            "--<door>-server-key '<cert>' has no private key in PEM form",
        ),
        (
            ["use-ssl=1", "server-cert=<cert>", "server-key=<other>"],
            "--<door>-server-key '<other>' is not the key of the first certificate",
        ),
        (
            ["use-ssl=1", "server-cert=<cert>", "server-key=<encrypted>"],
            "--<door>-server-key '<encrypted>' is encrypted; the key is needed without a passphrase",
        ),
        (
            ["use-ssl=1", "server-cert=<cert>", "server-key=<key>", "root-cert=<key>"],
            "--<door>-root-cert '<key>' has no certificate in PEM form (BEGIN CERTIFICATE)",
        ),
    ],
)
def test_start_errors(
    start_server: StartServer,
    repository: pathlib.Path,
    authority: Authority,
    door: str,
    flags: list[str],
    reason: str,
) -> None:
    """The errors name the flag and the file; the exit code is Triton's."""
    identity, other = authority.issue("server"), authority.issue("other")
    names = {
        "<door>": door,
        "<cert>": str(identity.certificate),
        "<key>": str(identity.key),
        "<other>": str(other.key),
        "<encrypted>": str(encrypted(identity)),
    }

    def filled(text: str) -> str:
        for name, value in names.items():
            text = text.replace(name, value)
        return text

    with start_server(repository, *[f"--{door}-{filled(flag)}" for flag in flags]) as server:
        assert server.wait_for_exit() == 1
        service = f"failed to start {door.upper()} service: Invalid argument - "
        assert service + filled(reason) + '"' in server.log()
