"""Tests of model repositories in buckets, with servers that implement the stores' protocols.

They need `moto_server` (tests/buckets.txt). Those for Azure and Google need Azurite and
fake-gcs-server, whose locations are in `GALATEA_AZURITE_BLOB` and `GALATEA_FAKE_GCS_SERVER`.
"""

from __future__ import annotations

import datetime
import http.server
import json
import pathlib
import stat
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from buckets import ACCOUNT, ACCOUNT_KEY, BUCKET, KEYS, S3, azurite, fake_gcs, moto, proxy
from conftest import StartServer
from constant_models import added_value, constant_model
from server import Program, Server, free_ports, wait_until

pytestmark = pytest.mark.galatea_only  # the recorded build of Triton has no object stores

EXPLICIT = "--model-control-mode=explicit"
POLL = ("--model-control-mode=poll", "--repository-poll-secs=1")

IDENTITY = b"""\
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """One S3 server for all tests, each with its own directory."""
    with moto(tmp_path_factory.mktemp("moto")) as running:
        yield running


@pytest.fixture
def copies(tmp_path: pathlib.Path) -> pathlib.Path:
    """The directory for copies."""
    folder = tmp_path / "copies"
    folder.mkdir()
    return folder


def surroundings(copies: pathlib.Path, **more: str) -> dict[str, str]:
    """The environment of a server."""
    return {**KEYS, "TRITON_AWS_MOUNT_DIRECTORY": str(copies), **more}


def url(port: int, folder: str) -> Any:
    """The address of a directory in the bucket."""
    return f"s3://127.0.0.1:{port}/{BUCKET}/{folder}"


def load(server: Server, name: str, action: str = "load") -> Any:
    """Loads a model."""
    return server.request("POST", f"/v2/repository/models/{name}/{action}", b"{}")


def objects(asked: list[str], folder: str) -> list[str]:
    """The objects that were read, without lists."""
    prefix = f"GET /{BUCKET}/{folder}/"
    return sorted(line.removeprefix(prefix) for line in asked if line.startswith(prefix))


# row: CLD-04 CLD-05
def test_a_repository_serves_and_follows_its_bucket(
    start_server: StartServer, store: S3, copies: pathlib.Path
) -> None:
    """Polls notice objects that were replaced (even within the same second), added or removed."""
    store.put("poll/add/1/model.onnx", constant_model(1))
    store.put("poll/add/2/model.onnx", constant_model(2))
    policy = b"version_policy: { all: {} }"
    store.put("poll/add/config.pbtxt", policy)
    with proxy(store) as between:
        address, environment = url(between.port, "poll"), surroundings(copies)
        with start_server(address, *POLL, environment=environment) as server:
            server.wait_until_ready()
            assert [added_value(server, "add", version) for version in (1, 2)] == [1, 2]
            expected = ["add/1/model.onnx", "add/2/model.onnx", "add/config.pbtxt"]
            assert objects(between.take_asked(), "poll") == expected, "versions share a copy"
            (copy,) = copies.iterdir()
            assert stat.S_IMODE(copy.stat().st_mode) == 0o700

            store.put("poll/add/2/model.onnx", constant_model(20))
            wait_until(lambda: added_value(server, "add", 2) == 20, 60, "the new file serves")
            assert objects(between.take_asked(), "poll") == ["add/2/model.onnx"], "nothing else"
            assert added_value(server, "add", 1) == 1
            store.put("poll/other/1/model.onnx", constant_model(5))
            is_there = lambda: server.get("/v2/models/other/ready").status == 200  # noqa: E731
            wait_until(is_there, 60, "a new model serves")
            store.delete("poll/other/1/model.onnx")
            wait_until(lambda: not is_there(), 60, "the model is gone")
            # The first version of the other model didn't change, so it keeps its earlier copy.
            wait_until(lambda: len(list(copies.iterdir())) == 2, 60, "old copies are removed")
    assert list(copies.iterdir()) == [], "nothing is left"


def test_a_load_reads_only_its_model(
    start_server: StartServer, store: S3, copies: pathlib.Path
) -> None:
    """In explicit mode, only the names are listed, and a copy exists as long as its model."""
    for name in ("a", "b"):
        store.put(f"explicit/{name}/1/model.onnx", constant_model(7))
        store.put(f"explicit/{name}/labels.txt", b"x")
    with proxy(store) as between:
        address, environment = url(between.port, "explicit"), surroundings(copies)
        with start_server(address, EXPLICIT, environment=environment) as server:
            server.wait_until_ready()
            index = server.request("POST", "/v2/repository/index", b"{}").json()
            assert sorted(model["name"] for model in index) == ["a", "b"]
            assert objects(between.take_asked(), "explicit") == []
            assert load(server, "a").status == 200
            assert objects(between.take_asked(), "explicit") == ["a/1/model.onnx", "a/labels.txt"]
            assert added_value(server, "a") == 7
            missing = load(server, "nothing")
            assert (missing.status, missing.error()) == (
                500,
                "failed to load 'nothing', failed to poll from model repository",
            )
            assert load(server, "a", "unload").status == 200
            wait_until(lambda: not list(copies.iterdir()), 60, "the copy is removed")


def test_models_on_demand_count_with_the_sizes_in_the_listing(
    start_server: StartServer, store: S3, copies: pathlib.Path
) -> None:
    """Before its first load, a model's size is known, and none of its files has been read."""
    size = 5 << 20
    store.put("demand/add/1/model.onnx", constant_model(7))
    store.put("demand/add/1/weights", b"x" * size)
    store.put("demand/add/2/model.onnx", constant_model(8))
    demand = ("--model-control-mode=demand", "--model-memory=1G")
    with proxy(store) as between:
        address, environment = url(between.port, "demand"), surroundings(copies)
        with start_server(address, *demand, environment=environment) as server:
            server.wait_until_ready()
            report = lambda: server.get("/v2/models/add/memory").json()  # noqa: E731
            # Only the newest version is served.
            listed = report()
            assert listed["bytes"] == len(constant_model(8)), listed
            assert (listed["measured"], listed["state"]) == (False, "not_resident")
            assert objects(between.take_asked(), "demand") == []
            assert added_value(server, "add") == 8
            assert report()["measured"]
    store.put("demand/add/config.pbtxt", b"version_policy: { all: {} }")
    with start_server(url(store.port, "demand"), *demand, environment=surroundings(copies)) as server:
        server.wait_until_ready()
        assert size < server.get("/v2/models/add/memory").json()["bytes"] < size + (1 << 20)


def test_a_connection_that_breaks_is_continued(
    start_server: StartServer, store: S3, copies: pathlib.Path
) -> None:
    """The transfer of a long object resumes where it broke off, and completes."""
    weights = bytes(range(256)) * (40 << 12)
    store.put("long/m/config.pbtxt", IDENTITY)
    store.put("long/m/1/weights", weights)
    with proxy(store) as between:
        address, environment = url(between.port, "long"), surroundings(copies)
        with start_server(address, EXPLICIT, environment=environment) as server:
            server.wait_until_ready()
            between.cut_after = 10 << 20
            assert load(server, "m").status == 200
            assert between.cut_after is None, "it was cut"
            parts = objects(between.take_asked(), "long").count("m/1/weights")
            assert parts == 4, "three parts, one of them in two"
            (copy,) = copies.iterdir()
            assert (copy / "1/weights").read_bytes() == weights


def test_many_models_wait_for_the_store_together(
    start_server: StartServer, store: S3, copies: pathlib.Path
) -> None:
    """105 models behind a delay of 20 ms: few lists, one request for each object, and many at a
    time.

    The number at a time may exceed the number of threads that load models."""
    names = [f"m{number}" for number in range(105)]
    for name in names:
        store.put(f"many/{name}/config.pbtxt", IDENTITY)
        store.put(f"many/{name}/1/weights", b"w")
    with proxy(store, delay_seconds=0.02) as between:
        address, environment = url(between.port, "many"), surroundings(copies)
        most: list[int] = []

        def count_anew() -> None:
            with between.lock:
                most.append(between.open_requests_max)
                between.open_requests_max = 0

        between.before_request = (f"GET /{BUCKET}/many/m0/1/weights", count_anew)
        flag = "--model-load-thread-count=2"
        with start_server(address, flag, environment=environment) as server:
            server.wait_until_ready()
            most.append(between.open_requests_max)
            asked = between.take_asked()
            assert len(objects(asked, "many")) == 2 * len(names)
            assert len(asked) - 2 * len(names) <= 3, "the lists"
            configurations, files = most
            assert min(configurations, files) >= 8
            assert server.get("/v2/models/m104/ready").status == 200


def test_a_name_that_is_no_path_concerns_its_model_alone(
    start_server: StartServer, store: S3, copies: pathlib.Path
) -> None:
    """A user who writes to one model's directory can't stop the other models."""
    for name in ("a", "b"):
        store.put(f"names/{name}/config.pbtxt", IDENTITY)
        store.put(f"names/{name}/1/weights", b"w")
    address, environment = url(store.port, "names"), surroundings(copies)
    with start_server(address, *POLL, environment=environment) as server:
        server.wait_until_ready()
        store.put("names/b//weights", b"w")
        store.put("names/c/config.pbtxt", IDENTITY)
        store.put("names/c/1/weights", b"w")
        is_there = lambda: server.get("/v2/models/c/ready").status == 200  # noqa: E731
        wait_until(is_there, 60, "the poll goes on")
        assert "names/b//weights" in server.log()
        assert server.get("/v2/models/a/ready").status == 200


class Roles(http.server.BaseHTTPRequestHandler):
    """The servers that give Amazon's machines, containers and clusters their roles."""

    def credential(self, key: str) -> dict[str, str]:
        """Keys like those that are issued for an hour."""
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        expiration = end.strftime("%Y-%m-%dT%H:%M:%SZ")
        keys = {"AccessKeyId": key, "SecretAccessKey": "s", "Token": "t"}
        return {**keys, "Expiration": expiration, "Code": "Success"}

    def answer(self, text: str | None) -> None:
        """Responds with a text, or with 403 if there is none."""
        self.send_response(403 if text is None else 200)
        self.send_header("Content-Length", str(len(text or "")))
        self.end_headers()
        self.wfile.write((text or "").encode())

    def do_PUT(self) -> None:
        """A session with the metadata service."""
        self.answer("session" if self.path == "/latest/api/token" else None)

    def do_GET(self) -> None:
        """The metadata of machines, and the credentials of pods."""
        role = "/latest/meta-data/iam/security-credentials/"
        in_session = self.headers["X-aws-ec2-metadata-token"] == "session"
        if self.path == role and in_session:
            self.answer("serving")
        elif self.path == f"{role}serving" and in_session:
            self.answer(json.dumps(self.credential("machine")))
        elif self.path == "/pod" and self.headers["Authorization"] == "identity":
            self.answer(json.dumps(self.credential("pod")))
        else:
            self.answer(None)

    def do_POST(self) -> None:
        """The service that issues roles for tokens."""
        asked = self.path + self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
        if "WebIdentityToken=identity" not in asked or "AssumeRoleWithWebIdentity" not in asked:
            self.answer(None)
            return
        given = self.credential("web")
        given["SessionToken"] = given.pop("Token")
        fields = "".join(f"<{name}>{value}</{name}>" for name, value in given.items())
        self.answer(
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
            f"{fields}</Credentials></AssumeRoleWithWebIdentityResult>"
            "</AssumeRoleWithWebIdentityResponse>"
        )

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@pytest.fixture(scope="module")
def roles() -> Iterator[int]:
    """The port of a server that issues roles."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Roles) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(
    ("key", "variables"),
    [
        ("machine", {"AWS_METADATA_ENDPOINT": "http://127.0.0.1:{port}"}),
        (
            "pod",
            {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:{port}/pod",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "{token}",
            },
        ),
        (
            "web",
            {
                "AWS_WEB_IDENTITY_TOKEN_FILE": "{token}",
                "AWS_ROLE_ARN": "arn:aws:iam::1:role/serving",
                "AWS_ENDPOINT_URL_STS": "http://127.0.0.1:{port}",
            },
        ),
    ],
)
# row: CLD-02
def test_roles_of_machines_and_clusters(
    start_server: StartServer,
    store: S3,
    roles: int,
    copies: pathlib.Path,
    tmp_path: pathlib.Path,
    key: str,
    variables: dict[str, str],
) -> None:
    """Without configured keys, requests use the keys from the role."""
    store.put("roles/m/config.pbtxt", IDENTITY)
    store.put("roles/m/1/w", b"w")
    token = tmp_path / "token"
    token.write_text("identity")
    environment = {
        name: value.format(port=roles, token=token) for name, value in variables.items()
    }
    environment |= {"TRITON_AWS_MOUNT_DIRECTORY": str(copies), "AWS_REGION": "us-east-1"}
    with proxy(store) as between:
        with start_server(url(between.port, "roles"), environment=environment) as server:
            server.wait_until_ready()
        assert between.keys == {key}


# row: CLD-03
def test_credentials_of_the_longest_prefix(
    start_server: StartServer, store: S3, copies: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """TRITON_CLOUD_CREDENTIAL_PATH takes precedence over the variables."""
    store.put("keys/m/config.pbtxt", IDENTITY)
    store.put("keys/m/1/w", b"w")
    with proxy(store) as between:
        address = url(between.port, "keys")
        entry = {"secret_key": "s", "region": "us-east-1"}
        file = tmp_path / "credentials.json"
        entries = {"": {**entry, "key_id": "any"}, address: {**entry, "key_id": "longest"}}
        file.write_text(json.dumps({"s3": entries}))
        environment = surroundings(copies, TRITON_CLOUD_CREDENTIAL_PATH=str(file))
        with start_server(address, environment=environment) as server:
            server.wait_until_ready()
        assert between.keys == {"longest"}


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("s3://127.0.0.1:{closed}/b", "endpoint: can't connect to 127.0.0.1:{closed}"),
        ("s3://nohost.invalid:80/b", "DNS: the name 'nohost.invalid' can't be looked up"),
        ("s3://https://127.0.0.1:{port}/b", "TLS: 127.0.0.1:{port}"),
        ("s3://127.0.0.1:{port}/absent", "(bucket: there is none of this name)"),
        ("s3://127.0.0.1:{port}/models/absent", "repository path is not a valid directory"),
        ("s3://https://host/bucket", "needs a host and a port"),
        ("as://account", "Invalid azure storage path: as://account"),
        ("gs://", "No bucket name found in path: gs://"),
    ],
)
# row: CLD-01 CLD-02
def test_a_start_that_fails_says_what_to_mend(
    program: Program, store: S3, address: str, expected: str
) -> None:
    """There is a separate text for each of endpoint, DNS, TLS, bucket and directory, which is
    Triton's if it has one."""
    places = {"port": store.port, "closed": free_ports(1)[0]}
    done = start(program, address.format(**places), KEYS)
    assert done.returncode == 1
    assert expected.format(**places) in done.stdout, done.stdout
    if "s3" in address and "(" in expected:
        assert "Unable to create S3 filesystem client. Check account credentials." in done.stdout


def test_refused_credentials_are_told(program: Program, tmp_path: pathlib.Path) -> None:
    """Keys that the server doesn't know, and a file without a match."""
    with moto(tmp_path) as store:
        store.demand_known_keys()
        done = start(program, url(store.port, ""), KEYS)
        assert done.returncode == 1
        assert "(credentials: the server does not accept these" in done.stdout, done.stdout
        assert "InvalidAccessKeyId" in done.stdout
        assert "secret" not in done.stdout
    file = tmp_path / "credentials.json"
    file.write_text('{"s3": {"s3://other": {}}}')
    done = start(program, "s3://b", {"TRITON_CLOUD_CREDENTIAL_PATH": str(file)})
    assert "Cannot match credential for path  s3://b" in done.stdout


def start(
    program: Program, repository: str, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Starts a server that ends by itself."""
    http, grpc, metrics = free_ports(3)
    ports = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    return subprocess.run(
        program.command([f"--model-repository={repository}", *ports]),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
        env=environment,
    )  # fmt: skip


def test_a_store_that_goes_away_keeps_what_serves(
    start_server: StartServer, store: S3, copies: pathlib.Path
) -> None:
    """Polls fail with a line in the log, and the models continue."""
    store.put("away/add/1/model.onnx", constant_model(3))
    with proxy(store) as between:
        address, environment = url(between.port, "away"), surroundings(copies)
        with start_server(address, *POLL, environment=environment) as server:
            server.wait_until_ready()
            between.close()
            text = "failed to poll model repository"
            wait_until(lambda: text in server.log(), 60, "a poll fails")
            assert "endpoint: " in server.log()
            assert added_value(server, "add") == 3


# row: CLD-01 CLD-02
def test_objects_of_google(
    start_server: StartServer, copies: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The same with the protocol of Google's cloud."""
    with fake_gcs(tmp_path) as store:
        store.put("repo/add/1/model.onnx", constant_model(6))
        environment = {
            "CLOUD_STORAGE_EMULATOR_ENDPOINT": f"http://127.0.0.1:{store.port}",
            "TRITON_GCS_MOUNT_DIRECTORY": str(copies),
        }
        address: Any = f"gs://{BUCKET}/repo"
        with start_server(address, *POLL, environment=environment) as server:
            server.wait_until_ready()
            assert added_value(server, "add") == 6
            store.put("repo/add/1/model.onnx", constant_model(60))
            wait_until(lambda: added_value(server, "add") == 60, 60, "the new file serves")
    assert list(copies.iterdir()) == []


# row: CLD-01 CLD-02
def test_blobs_of_azure(
    start_server: StartServer, copies: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The same with the protocol of Microsoft's cloud."""
    with azurite(tmp_path) as store:
        store.put("repo/add/1/model.onnx", constant_model(4))
        environment = {
            "AZURE_STORAGE_ACCOUNT": ACCOUNT,
            "AZURE_STORAGE_KEY": ACCOUNT_KEY,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{store.port}/{ACCOUNT}",
            "TRITON_AZURE_MOUNT_DIRECTORY": str(copies),
        }
        address: Any = f"as://{ACCOUNT}/{BUCKET}/repo"
        with start_server(address, *POLL, environment=environment) as server:
            server.wait_until_ready()
            assert added_value(server, "add") == 4
            store.put("repo/add/1/model.onnx", constant_model(40))
            wait_until(lambda: added_value(server, "add") == 40, 60, "the new file serves")
    assert list(copies.iterdir()) == []
