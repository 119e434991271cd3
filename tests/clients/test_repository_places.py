"""Tests of where a repository and its files may be: missing, replaced while the server runs, or
linked."""

from __future__ import annotations

import os
import pathlib

import pytest

from conftest import StartServer
from server import Server, wait_until

EXPLICIT = "--model-control-mode=explicit"

IDENTITY = """\
backend: "identity"
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ {dims} ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ {dims} ] }} ]
"""


def write(repository: pathlib.Path, name: str, dims: int) -> pathlib.Path:
    """A model with one input of this size."""
    model = repository / name
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(IDENTITY.format(dims=dims))
    return model


def dims(server: Server, name: str) -> list[int]:
    """The size of the model's input, which identifies the files that it was loaded from."""
    shape: list[int] = server.get(f"/v2/models/{name}").json()["inputs"][0]["shape"]
    return shape


def answers(server: Server) -> bool:
    """Returns true if the server accepts requests, although it isn't live."""
    try:
        return server.get("/v2").status == 200
    except OSError:
        return False


def load(server: Server, name: str) -> int:
    """The status of a load."""
    return server.request("POST", f"/v2/repository/models/{name}/load", b"{}").status


def switch(link: pathlib.Path, target: str) -> None:
    """Changes a link's target atomically, as release scripts do."""
    after = link.with_name("after")
    os.symlink(target, after)
    after.rename(link)


@pytest.mark.parametrize("also", [False, True])
def test_a_repository_that_is_missing(
    start_server: StartServer, tmp_path: pathlib.Path, also: bool
) -> None:
    """With --exit-on-error=false, the server runs but is never live, even with another
    repository."""
    write(tmp_path / "other", "m", 1)
    other = [f"--model-repository={tmp_path / 'other'}"] if also else []
    with start_server(tmp_path / "missing", "--exit-on-error=false", *other) as server:
        wait_until(lambda: answers(server), 60, "it listens")
        assert server.get("/v2/health/live").status == 400
        assert server.get("/v2/health/ready").status == 400
        assert server.get("/v2").status == 200
        for path in ("models/m", "models/m/ready", "models/m/config", "models/stats"):
            reply = server.get(f"/v2/{path}")
            assert (reply.status, reply.error()) == (503, "Server not ready"), path
        tensor = {"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [1]}
        reply = server.infer("m", {"inputs": [tensor]})
        assert (reply.status, reply.error()) == (503, "Server not ready")
        for path in ("index", "models/m/load", "models/m/unload"):
            reply = server.request("POST", f"/v2/repository/{path}", b"{}")
            assert (reply.status, reply.error()) == (503, "Server not ready"), path
        assert server.stop() == 0


def test_a_missing_repository_ends_the_start(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """By default, it ends with Triton's text."""
    with start_server(tmp_path / "missing") as server:
        assert server.wait_for_exit() == 1
        expected = f"error: creating server: Internal - failed to stat file {tmp_path}/missing"
        assert expected in server.log()


@pytest.mark.parametrize("replace", ["link", "move"])
def test_a_replaced_repository_is_read_anew(
    start_server: StartServer, tmp_path: pathlib.Path, replace: str
) -> None:
    """The next load uses what is at the path at that time."""
    write(tmp_path / "one", "m", 1)
    write(tmp_path / "two", "m", 2)
    write(tmp_path / "two", "n", 2)
    current = tmp_path / "current"
    if replace == "link":
        os.symlink("one", current)
    else:
        (tmp_path / "one").rename(current)
    with start_server(current, EXPLICIT) as server:
        server.wait_until_ready()
        assert load(server, "m") == 200
        assert (dims(server, "m"), load(server, "n")) == ([1], 500)
        if replace == "link":
            switch(current, "two")
        else:
            current.rename(tmp_path / "before")
            (tmp_path / "two").rename(current)
        (current / "m" / "config.pbtxt").touch()
        assert load(server, "m") == 200
        assert load(server, "n") == 200
        assert (dims(server, "m"), dims(server, "n")) == ([2], [2])


def test_a_replaced_repository_is_polled(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Models appear and disappear with it."""
    write(tmp_path / "one", "m", 1)
    write(tmp_path / "two", "n", 2)
    current = tmp_path / "current"
    os.symlink("one", current)
    flags = ["--model-control-mode=poll", "--repository-poll-secs=1"]
    with start_server(current, *flags) as server:
        server.wait_until_ready()
        assert dims(server, "m") == [1]
        switch(current, "two")
        wait_until(lambda: server.get("/v2/models/n/ready").status == 200, 30, "n is served")
        wait_until(lambda: server.get("/v2/models/m/ready").status == 400, 30, "m is gone")


def test_links_of_an_operator_are_followed(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Configurations as Kubernetes mounts them, and files in a cache outside the repository."""
    cache = tmp_path / "cache"
    write(cache, "blob", 7)
    repository = tmp_path / "repository"
    mounted = repository / "mounted"
    (mounted / "..2026_06_01").mkdir(parents=True)
    os.symlink("..2026_06_01", mounted / "..data")
    (mounted / "..2026_06_01" / "config.pbtxt").write_text(IDENTITY.format(dims=3))
    os.symlink("..data/config.pbtxt", mounted / "config.pbtxt")
    os.symlink(cache / "blob" / "1", mounted / "1")
    os.symlink("../cache/blob", repository / "linked")
    looping = repository / "looping"
    looping.mkdir()
    os.symlink("config.pbtxt", looping / "config.pbtxt")
    with start_server(repository, EXPLICIT) as server:
        server.wait_until_ready()
        assert (load(server, "mounted"), load(server, "linked")) == (200, 200)
        assert (dims(server, "mounted"), dims(server, "linked")) == ([3], [7])
        # The link is changed as Kubernetes does when the configuration changes.
        (mounted / "..2026_07_01").mkdir()
        (mounted / "..2026_07_01" / "config.pbtxt").write_text(IDENTITY.format(dims=4))
        after = mounted / "..data_tmp"
        os.symlink("..2026_07_01", after)
        after.rename(mounted / "..data")
        assert load(server, "mounted") == 200
        assert dims(server, "mounted") == [4]
        # A loop affects only its own model.
        assert load(server, "looping") in (400, 500)
        assert server.is_live() and server.is_ready()


@pytest.mark.galatea_only
def test_links_can_be_forbidden(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """With --repository-symlinks=false, a model with a link in its path isn't loaded."""
    write(tmp_path / "outside", "blob", 7)
    repository = tmp_path / "repository"
    write(repository, "plain", 1)
    inner = write(repository, "inner", 1)
    (inner / "1").rmdir()
    os.symlink("../plain/1", inner / "1")
    os.symlink("../outside/blob", repository / "linked")
    with start_server(repository, EXPLICIT, "--repository-symlinks=false") as server:
        server.wait_until_ready()
        assert load(server, "plain") == 200
        for name in ("inner", "linked"):
            assert load(server, name) == 500, name
        assert "Too many levels of symbolic links" in server.log()
