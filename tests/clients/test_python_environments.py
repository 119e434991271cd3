"""Tests of archives with environments of Python models that are damaged or lead out of their
directory."""

from __future__ import annotations

import gzip
import io
import pathlib
import tarfile
from collections.abc import Callable, Iterator

import pytest

from conftest import StartServer
from python_backend import children, interpreter_flag, tensors, write_model
from server import Server

TEXTS = tensors("IN:STRING:1", "OUT:STRING:1")
ARCHIVE = (
    'parameters { key: "EXECUTION_ENV_PATH" '
    'value { string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }\n'
)


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A directory to which no archive may write."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "file").write_text("untouched")
    return folder


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A model whose environment is an archive, and a good model."""
    folder = tmp_path_factory.mktemp("python_environments")
    write_model(folder, "m", TEXTS + ARCHIVE, "echo")
    write_model(folder, "good", TEXTS, "echo")
    return folder


@pytest.fixture(scope="module")
def server(
    start_server: StartServer,
    repository: pathlib.Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """A server that extracts archives to its own directory."""
    temporary = tmp_path_factory.mktemp("temporary")
    flags = [interpreter_flag(), "--model-control-mode=explicit", "--load-model=good"]
    environment = {"TMPDIR": str(temporary)}
    with start_server(repository, *flags, environment=environment) as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0
    assert list(temporary.iterdir()) == []


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    """An entry of an archive."""
    one = tarfile.TarInfo(name)
    one.type, one.linkname, one.mode = kind, target, 0o755
    one.size = 4 if kind == tarfile.REGTYPE else 0
    return one


def archive(*members: tarfile.TarInfo) -> bytes:
    """An archive with any entries."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for one in members:
            tar.addfile(one, io.BytesIO(b"evil") if one.size else None)
    return file.getvalue()


def through_link(outside: pathlib.Path) -> bytes:
    link = member("link", tarfile.SYMTYPE, str(outside))
    return archive(link, member("link/written"))


def over_link(outside: pathlib.Path) -> bytes:
    link = member("link", tarfile.SYMTYPE, str(outside / "file"))
    return archive(link, member("link"))


def hard_link(outside: pathlib.Path) -> bytes:
    link = member("link", tarfile.LNKTYPE, str(outside / "file"))
    return archive(link, member("link"))


def upwards(outside: pathlib.Path) -> bytes:
    return archive(member("lib/../../../../../" + str(outside / "written").lstrip("/")))


def cut(_: pathlib.Path) -> bytes:
    return archive(member("bin/python3"))[:-20]


def wrong_sum(_: pathlib.Path) -> bytes:
    data = bytearray(gzip.decompress(archive(member("bin/python3"))))
    data[0] ^= 1
    return gzip.compress(bytes(data))


def text(_: pathlib.Path) -> bytes:
    return b"no archive"


def nothing(_: pathlib.Path) -> bytes:
    return b""


@pytest.mark.parametrize(
    "make", [upwards, through_link, hard_link, cut, wrong_sum, text, nothing]
)
def test_archives_that_are_refused(
    server: Server,
    repository: pathlib.Path,
    outside: pathlib.Path,
    make: Callable[[pathlib.Path], bytes],
) -> None:
    """The load fails, nothing is written outside, and the other models are served."""
    (repository / "m" / "env.tar.gz").write_bytes(make(outside))
    reply = server.request("POST", "/v2/repository/models/m/load", b"{}")
    assert reply.status == 400, reply
    assert "archive_read_open_filename() failed" in reply.error()
    check_untouched(outside)
    assert not children(server, "m")
    assert server.get("/v2/models/good/ready").status == 200


@pytest.mark.parametrize("name", ["/absolute", "link"])
def test_archives_that_stay_inside(
    server: Server, repository: pathlib.Path, outside: pathlib.Path, name: str
) -> None:
    """An absolute name is treated as relative to the directory, and a link is replaced."""
    content = over_link(outside) if name == "link" else archive(member(f"{outside}/written"))
    (repository / "m" / "env.tar.gz").write_bytes(content)
    assert server.request("POST", "/v2/repository/models/m/load", b"{}").status == 200
    check_untouched(outside)
    assert server.request("POST", "/v2/repository/models/m/unload", b"{}").status == 200


def check_untouched(outside: pathlib.Path) -> None:
    """Nothing was written there."""
    assert [one.name for one in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "untouched"
