"""Tests of `galatea completions SHELL` in the shells themselves."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

from server import Program

pytestmark = pytest.mark.galatea_only

SECONDS_MAX = 60

#: What is typed, and what among others is offered for it; `-` before what isn't.
CASES = {
    "": {"serve", "check", "bench", "new", "trace", "completions"},
    "se": {"serve", "-check"},
    "--model-rep": {"--model-repository", "-model-store"},
    "serve --js": {"--json"},
    "serve --http-po": {"--http-port"},
    "serve m": {"model.onnx", "models"},
    "serve --name x m": {"model.onnx"},
    "serve --onnxruntime-library m": {"model.onnx"},
    "new ": {"python", "-export"},
    "new python --d": {"--directory", "-http-port"},
    "new python m --json --d": {"--directory"},
    "keys ": {"new", "list", "revoke"},
    "keys new --a": {"--apis", "-http-port"},
    "keys list m": {"model.onnx"},
    "trace ": {"export"},
    "trace export m": {"model.onnx"},
    "completions ": {"bash", "zsh", "fish"},
}


def script(program: Program, shell: str) -> str:
    """The script for a shell."""
    done = subprocess.run(
        [str(program.path), "completions", shell], capture_output=True, text=True, check=True,
        timeout=SECONDS_MAX,
    )
    assert done.stderr == ""
    return done.stdout


def run(shell: str, text: str, cwd: pathlib.Path) -> list[str]:
    """The output of a program in a shell."""
    done = subprocess.run(
        [shell, *(["--norc"] if shell.endswith("bash") else []), "-c", text], cwd=cwd,
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        env={"HOME": str(cwd), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
    )
    assert done.stderr == "", done.stderr
    return done.stdout.split()


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A directory with something to complete."""
    (tmp_path / "model.onnx").write_text("")
    (tmp_path / "models").mkdir()
    return tmp_path


def check(offered: list[str], expected: set[str], typed: str) -> None:
    """Compares the offered completions."""
    unwanted = {one[1:] for one in expected if one[0] == "-" and one[1] != "-"}
    offered = [one.rstrip("/") for one in offered]
    assert expected - {f"-{one}" for one in unwanted} <= set(offered), (typed, offered)
    assert not unwanted & {one.lstrip("-") for one in offered}, (typed, offered)


@pytest.mark.parametrize("typed", CASES)
def test_in_bash(program: Program, folder: pathlib.Path, typed: str) -> None:
    """The function is called as bash calls it."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    words = ["galatea", *typed.split(" ")]
    quoted = " ".join(f"'{word}'" for word in words)
    offered = run(
        bash,
        f"{script(program, 'bash')}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n"
        '_galatea galatea "${COMP_WORDS[COMP_CWORD]}"\nprintf "%s\\n" "${COMPREPLY[@]}"',
        folder,
    )
    check(offered, CASES[typed], typed)


def test_values_behind_an_equals_sign_in_bash(program: Program, folder: pathlib.Path) -> None:
    """Bash treats it as a separate word."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    for words, expected in ((["--model-repository", "=", "mod"], {"models", "model.onnx"}),
                            (["--model-repository", "="], {"models"}),
                            (["--http-port", "=", ""], set())):
        quoted = " ".join(f"'{word}'" for word in ["galatea", *words])
        offered = run(
            bash,
            f"{script(program, 'bash')}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words)}\n"
            '_galatea\nprintf "%s\\n" "${COMPREPLY[@]}"', folder,
        )
        assert expected <= set(offered) and bool(expected) == bool(offered), (words, offered)


@pytest.mark.parametrize("typed", CASES)
def test_in_fish(program: Program, folder: pathlib.Path, typed: str) -> None:
    """Fish tells what it would offer."""
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("needs fish")
    (folder / "galatea.fish").write_text(script(program, "fish"))
    offered = run(fish, f"source galatea.fish; complete -C 'galatea {typed}' | cut -f 1", folder)
    check(offered, CASES[typed], typed)


def test_zsh_reads_the_script(program: Program, folder: pathlib.Path) -> None:
    """The function is defined, and is the completion of the program."""
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("needs zsh")
    (folder / "_galatea").write_text(script(program, "zsh"))
    printed = run(
        zsh,
        "autoload -U compinit && compinit -u -D; source ./_galatea && print $_comps[galatea]",
        folder,
    )
    assert printed == ["_galatea"]


def test_zsh_offers_commands_and_flags(program: Program, folder: pathlib.Path) -> None:
    """A zsh on a terminal lists them, as a user sees it."""
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("needs zsh")
    from terminals import Terminal

    (folder / "_galatea").write_text(script(program, "zsh"))
    variables = {"HOME": str(folder), "TERM": "dumb", "PS1": "ready> ", "PROMPT": "ready> "}
    for typed, wanted in (("se\t", "serve"), ("serve --js\t", "--json"), ("new \t", "python"),
                          ("--model-rep\t", "--model-repository"), ("serve mod\t", "model")):
        terminal = Terminal([zsh, "-f", "-i"], variables, folder)
        terminal.read_until("ready> ")
        terminal.type("autoload -U compinit && compinit -u -D; source ./_galatea; echo do''ne\n")
        terminal.read_until("done")
        terminal.type(f"galatea {typed}")
        terminal.read_until(f"galatea {' '.join([*typed.split(' ')[:-1], wanted])}")
        terminal.type("\x03exit\n")
        terminal.process.kill()
        terminal.close()


@pytest.mark.parametrize(("arguments", "reason"), [
    ([], "the name of one shell is missing"),
    (["tcsh"], "there are completions for bash, zsh and fish, not for 'tcsh'"),
])
def test_other_shells(program: Program, arguments: list[str], reason: str) -> None:
    """The error lists the supported ones."""
    done = subprocess.run(
        [str(program.path), "completions", *arguments], capture_output=True, text=True,
        timeout=SECONDS_MAX, check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == f"error: {reason}"
