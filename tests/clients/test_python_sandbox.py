"""Tests of the sandbox for Python models: each promise in docs/security.md.

Everything that it denies is also tried with a server without the sandbox, where it must succeed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from conftest import StartServer
from python_backend import children, interpreter_flag, tensors, write_model
from server import Server, wait_until
from transports import RESPONSE_SECONDS_MAX

TEXTS = tensors("IN:STRING:1", "OUT:STRING:1")
SANDBOX = "--backend-config=python,sandbox=true"
VARIABLES = "--backend-config=python,sandbox-variables=GALATEA_TEST_ALLOWED,GALATEA_TEST_OTHER"
SECRETS = [
    "AWS_SECRET_ACCESS_KEY",
    "AZURE_STORAGE_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GALATEA_TEST_SECRET",
    "HF_TOKEN",
    "TRITONCACHE_REDIS_PASSWORD",
]
EXPLICIT = "--model-control-mode=explicit"
OPEN, CLOSED = "open", "closed"
#: The signals and abstract sockets that Landlock knows of since this version.
LANDLOCK = 6
LANDLOCK_CREATE_RULESET = 444


def landlock_version() -> int:
    """The kernel's Landlock version; below 1 if it has none."""
    return int(ctypes.CDLL(None).syscall(LANDLOCK_CREATE_RULESET, None, 0, 1))


pytestmark = pytest.mark.skipif(
    landlock_version() < LANDLOCK, reason="needs a kernel with Landlock 6 (Linux 6.12)"
)


def parameter(name: str, value: str) -> str:
    """A parameter of a configuration."""
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'


def do(server: Server, code: str, model: str = "m") -> str:
    """The response of a model that executes this code."""
    tensor = {"name": "IN", "datatype": "BYTES", "shape": [1], "data": [code]}
    reply = server.infer(model, {"inputs": [tensor]})
    if reply.status != 200:
        return f"{reply.status} {reply.error()}"
    return str(reply.json()["outputs"][0]["data"][0])


class Place:
    """A server, its repository, and a directory outside it."""

    def __init__(self, folder: pathlib.Path, is_open: bool) -> None:
        #: Whether it has no sandbox.
        self.is_open = is_open
        self.repository = folder / "models"
        self.outside = folder / "outside"
        self.outside.mkdir(parents=True)
        write_model(self.repository, "m", TEXTS, "sandbox")
        self.own = self.repository / "m" / "1"
        self.server: Server

    def do(self, code: str, **values: object) -> str:
        """The model's response; names in capital letters are replaced in the code."""
        known = {"OUTSIDE": self.outside, "OWN": self.own, "MODEL": self.own.parent}
        for name, value in (known | values).items():
            code = code.replace(name, str(value))
        return do(self.server, code)


@pytest.fixture(scope="module", params=[OPEN, CLOSED])
def place(
    request: pytest.FixtureRequest,
    start_server: StartServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Place]:
    """A server without the sandbox, and one with it."""
    made = Place(tmp_path_factory.mktemp(request.param), request.param == OPEN)
    flags = [] if made.is_open else [SANDBOX, VARIABLES]
    variables = dict.fromkeys([*SECRETS, "GALATEA_TEST_ALLOWED"], "text")
    with start_server(
        made.repository, interpreter_flag(), *flags, environment=variables
    ) as made.server:
        made.server.wait_until_ready()
        yield made
    assert made.server.process.returncode == 0


def check(place: Place, answer: str, denied: str = "PermissionError") -> None:
    """A model without the sandbox was able to do it, and a model in the sandbox was not."""
    if place.is_open:
        assert answer == "done"
    else:
        assert answer.startswith(denied), answer


@contextlib.contextmanager
def listener(family: int, address: object) -> Iterator[socket.socket]:
    """A socket that a model may try to reach."""
    with socket.socket(family) as made:
        made.bind(address)
        made.listen()
        yield made


class Victim:
    """A process of the same user, which is out of reach for a model in the sandbox.

    When asked, it reports the signals that it received."""

    CODE = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGIO])
print("ready", flush=True)
input()
print(*sorted(signal.sigpending()), flush=True)
"""

    def __init__(self) -> None:
        command = [sys.executable, "-c", self.CODE]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env={"SECRET": "treasure"}, **pipes)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def signals(self) -> str:
        """The signals that it received; it then ends."""
        out, _ = self.process.communicate("\n")
        return str(out).strip()


@pytest.fixture
def victim() -> Iterator[Victim]:
    made = Victim()
    yield made
    made.process.kill()
    made.process.wait()


def test_tcp(place: Place) -> None:
    with listener(socket.AF_INET, ("127.0.0.1", 0)) as made:
        port = made.getsockname()[1]
        answer = place.do("socket.create_connection(('127.0.0.1', PORT))", PORT=port)
    check(place, answer)


def test_unix_sockets(place: Place) -> None:
    """Examples are the sockets of daemons that follow commands."""
    path = str(place.outside / "socket")
    abstract = f"galatea sandbox {os.getpid()} {path}"
    with listener(socket.AF_UNIX, path):
        check(place, place.do(f"socket.socket(socket.AF_UNIX).connect({path!r})"))
    with listener(socket.AF_UNIX, "\0" + abstract):
        check(place, place.do(f"socket.socket(socket.AF_UNIX).connect('\\0' + {abstract!r})"))


def test_datagrams(place: Place) -> None:
    check(place, place.do("socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('127.0.0.1', 9))"))
    path = str(place.outside / "datagrams")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(path)
        pair = "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]"
        answer = place.do(f"{pair}.sendto(b'a', {path!r})")
    check(place, answer)


def test_what_a_connected_socket_could_do(place: Place) -> None:
    """The pairs that asynchronous code needs don't lead anywhere else."""
    code = "one, other = socket.socketpair(); one.sendall(b'abc'); result = other.recv(3)"
    assert place.do(code) == "b'abc'"
    path = place.outside / "bound"
    check(place, place.do(f"socket.socketpair()[0].bind({str(path)!r})"))


@pytest.mark.parametrize(
    "code",
    [
        "open('OUTSIDE/new', 'w')",
        "open('OUTSIDE/file', 'a')",
        "os.truncate('OUTSIDE/file', 0)",
        "os.mkdir('OUTSIDE/folder')",
        "os.rename('OUTSIDE/file', 'OUTSIDE/renamed')",
        "os.unlink('OUTSIDE/file')",
        "os.symlink('/', 'OUTSIDE/link')",
        "os.link('OUTSIDE/file', 'OUTSIDE/second')",
        "os.mkfifo('OUTSIDE/fifo')",
        "os.chmod('OUTSIDE/file', 0)",
        "os.fchmod(os.open('OUTSIDE/file', os.O_RDONLY), 0o644)",
        "os.chown('OUTSIDE/file', os.getuid(), os.getgid())",
        "os.utime('OUTSIDE/file')",
        "open('MODEL/config.pbtxt', 'a')",
        "open('MODEL/new', 'w')",
        "os.mkdir('MODEL/2'); os.rmdir('MODEL/2')",
        "open('/dev/shm/galatea-sandbox', 'w'); os.unlink('/dev/shm/galatea-sandbox')",
        # These attempts to bypass the sandbox use the model's own links.
        "os.symlink('OUTSIDE/file', 'OWN/link'); open('OWN/link', 'a')",
        "os.link('OUTSIDE/file', 'OWN/hard'); open('OWN/hard', 'a')",
        "subprocess.run(['/bin/sh', '-c', 'echo > OUTSIDE/by_shell || exit 13'], check=True)",
    ],
)
def test_files_elsewhere(place: Place, code: str) -> None:
    shutil.rmtree(place.outside)
    place.outside.mkdir()
    for name in ("link", "hard"):
        (place.own / name).unlink(missing_ok=True)
    (place.outside / "file").write_text("text")
    # Hard links to files that can't be written to are refused, like links to another device.
    denied = {"os.link('OUTSIDE/file', 'OWN": "OSError", "subpro": "CalledProcessError"}
    expected = [error for begin, error in denied.items() if code.startswith(begin)]
    check(place, place.do(code), *expected)
    if not place.is_open:
        assert [one.name for one in place.outside.iterdir()] == ["file"]
        assert (place.outside / "file").read_text() == "text"


def test_attributes_of_file_systems(place: Place) -> None:
    """They can be read. A file that was opened for reading stays unchanged."""
    code = """
import array, fcntl
def request(number, file):
    flags = array.array('l', [0])
    fcntl.ioctl(file, 0x80086601, flags)
    fcntl.ioctl(file, number, flags)
request(NUMBER, os.open('FILE', os.O_RDONLY))
"""
    file = place.outside / "attributes"
    file.write_text("text")
    get_flags, set_flags = 0x80086601, 0x40086602
    answers = [place.do(code, NUMBER=one, FILE=file) for one in (get_flags, set_flags)]
    if "Inappropriate ioctl" in answers[0]:
        pytest.skip("the file system of temporary files has no attributes")
    assert answers[0] == "done"
    check(place, answers[1])
    lease = "fcntl.fcntl(os.open('FILE', os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)"
    check(place, place.do(f"import fcntl; {lease}", FILE=file))


def test_files_that_can_be_read(place: Place) -> None:
    """As without the sandbox, libraries may be anywhere."""
    (place.outside / "readable").write_text("text")
    assert place.do("result = open('OUTSIDE/readable').read()") == "text"
    assert place.do("result = b'TYPE_STRING' in open('MODEL/config.pbtxt', 'rb').read()") == "True"


def test_its_own_files(place: Place) -> None:
    code = """
own = pathlib.Path('OWN') / 'state'
own.mkdir(exist_ok=True)
(own / 'a').write_text('text')
(own / 'a').rename(own / 'b')
result = (own / 'b').read_text(), (own / 'b').unlink(), os.rmdir(own)
"""
    assert place.do(code) == "('text', None, None)"


def test_temporary_files(place: Place) -> None:
    code = """
import tempfile
with tempfile.TemporaryDirectory() as folder:
    (pathlib.Path(folder) / 'a').write_text('text')
with tempfile.TemporaryFile() as file:
    file.write(b'a')
open(os.devnull, 'w').write('a')
result = os.urandom(4) and 'written'
"""
    assert place.do(code) == "written"


def test_signals(place: Place, victim: Victim) -> None:
    """This applies to `kill` and to the owner of a descriptor."""
    number = victim.process.pid
    check(place, place.do(f"os.kill({number}, 10)"))
    answer = do(place.server, f"""
import fcntl
end, other = os.pipe()
fcntl.fcntl(end, fcntl.F_SETOWN, {number})
fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
os.write(other, b'a')
""")
    assert answer == "done"
    both = f"{int(signal.SIGUSR1)} {int(signal.SIGIO)}"
    assert victim.signals() == (both if place.is_open else "")


def test_the_server_is_no_target(place: Place) -> None:
    check(place, place.do("os.kill(os.getppid(), 0)"))
    # The limit applies to each of its threads.
    code = """
def reach(thread):
    return not call(234, os.getppid(), thread, 0)
result = any(reach(thread) for thread in THREADS)
"""
    threads = [int(name) for name in os.listdir(f"/proc/{place.do('result = os.getppid()')}/task")]
    if sys.platform == "linux" and os.uname().machine == "x86_64":
        assert place.do(code, THREADS=threads) == str(place.is_open)


def test_secrets_of_other_processes(place: Place, victim: Victim) -> None:
    number = victim.process.pid
    for file in ("environ", "mem", "maps"):
        check(place, place.do(f"open('/proc/{number}/{file}', 'rb').read(0)"))
        check(place, place.do(f"open(f'/proc/{{os.getppid()}}/{file}', 'rb').read(0)"))
    check(place, place.do(f"os.readlink('/proc/{number}/fd/0')"))
    check(place, place.do(f"os.listdir('/proc/{number}/root')"))
    # Descriptors would reveal whom they communicate with, and the list of processes would reveal
    # which ones exist.
    for directory in (f"/proc/{number}/fd", f"/proc/{number}/task", "/proc/self/fd", "/proc"):
        check(place, place.do(f"os.listdir('{directory}')"))
    check(place, place.do("os.listdir(f'/proc/{os.getppid()}/fd')"))


def test_secrets_of_the_environment(place: Place) -> None:
    """A worker in the sandbox has the variables on a list, and those that a flag names."""
    code = "result = [name for name in NAMES if os.environ.get(name)]"
    names = [*SECRETS, "PATH", "GALATEA_TEST_ALLOWED"]
    expected = names if place.is_open else names[len(SECRETS):]
    assert place.do(code, NAMES=names) == str(expected)
    other = "subprocess.run(['/bin/sh', '-c', 'export -p'], capture_output=True).stdout.decode()"
    found = place.do(f"result = {other}")
    assert all((name in found) == place.is_open for name in SECRETS)


def remove(path: pathlib.Path) -> None:
    """Removes a file or an empty directory, if it exists."""
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "code",
    [
        "os.open('OWN/made', os.O_CREAT | os.O_WRONLY, MODE)",
        "os.open('made', os.O_CREAT | os.O_WRONLY, MODE, dir_fd=os.open('OWN', os.O_RDONLY))",
        "os.mknod('OWN/made', stat.S_IFREG | MODE)",
        "os.open('OWN', os.O_TMPFILE | os.O_WRONLY, MODE)",
        "os.mkdir('OWN/made', 0o755); os.chmod('OWN/made', MODE)",
    ],
)
@pytest.mark.parametrize("mode", [0o4755, 0o2755])
def test_files_that_change_their_user(place: Place, code: str, mode: int) -> None:
    """A program outside the sandbox could execute them."""
    made = place.own / "made"
    remove(made)
    check(place, place.do(f"import stat; {code}", MODE=mode))
    assert not made.exists() or bool(made.stat().st_mode & 0o6000) == place.is_open


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86-64")
def test_other_calls_that_make_files(place: Place) -> None:
    """The mode is either in a register or in memory, which a filter can't read."""
    path = f"b'{place.own}/made'"
    set_user, creat, mknod, openat2 = 0o4755, 85, 133, 437
    for number in (creat, mknod):
        remove(place.own / "made")
        answer = place.do(f"result = call({number}, {path}, {set_user}, 0)")
        assert (answer == "EPERM") == (not place.is_open), answer
    assert (place.do(f"result = call({openat2}, -1, {path}, 0, 0)") == "ENOSYS") == (
        not place.is_open)
    # If no file is created, the mode has no effect.
    opened = "c.syscall(2, b'OWN/model.py', os.O_RDONLY, 0o7777)"
    assert int(place.do(f"result = {opened}")) >= 0


def test_debugging(place: Place, victim: Victim) -> None:
    attach, detach = 16, 17
    code = f"""
number = {victim.process.pid}
if c.ptrace({attach}, number, None, None):
    raise OSError(ctypes.get_errno(), 'ptrace')
os.waitpid(number, 0)
c.ptrace({detach}, number, None, None)
"""
    check(place, place.do(code))


def test_settings_of_other_processes(place: Place) -> None:
    code = """
import resource
limits = resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)
resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, limits)
"""
    check(place, place.do(code))
    check(place, place.do("os.sched_setaffinity(os.getppid(), os.sched_getaffinity(0))"))
    server = "os.PRIO_PROCESS, os.getppid()"
    check(place, place.do(f"os.setpriority({server}, os.getpriority({server}))"))
    own = "import resource; n = resource.RLIMIT_CORE; resource.setrlimit(n, resource.getrlimit(n))"
    # Python's name for this error is that of a different reason.
    check(place, place.do(own), "ValueError: not allowed to raise maximum limit")
    assert int(place.do("import resource; result = resource.getrlimit(resource.RLIMIT_CPU)[0]"))


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86-64")
@pytest.mark.parametrize(
    ("number", "name"),
    [
        (29, "shmget"),
        (68, "msgget"),
        (64, "semget"),
        (250, "keyctl"),
        (240, "mq_open"),
        (272, "unshare"),
        (304, "open_by_handle_at"),
        (321, "bpf"),
        (323, "userfaultfd"),
        (425, "io_uring_setup"),
        (438, "pidfd_getfd"),
    ],
)
def test_system_calls(place: Place, number: int, name: str) -> None:
    """Their arguments are invalid, and a call that is allowed reports this."""
    answer = place.do(f"result = call({number}, -1, -1, -1, -1, -1)")
    assert (answer == "EPERM") == (not place.is_open), (name, answer)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86-64")
def test_namespaces(place: Place) -> None:
    """The same is true of the newer call, whose arguments a filter can't see."""
    new_user, clone, clone3 = 0x10000000, 56, 435
    assert place.do(f"result = call({clone3}, 0, 0)") == (
        "EINVAL" if place.is_open else "ENOSYS")
    # Threads share what namespaces separate, so both flags together are always invalid.
    thread = 0x00010000 | 0x00000800 | 0x00000100
    answer = place.do(f"result = call({clone}, {new_user | thread}, 0, 0, 0, 0)")
    assert answer == ("EINVAL" if place.is_open else "EPERM")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="code of x86-64")
def test_calls_of_other_kinds(place: Place) -> None:
    """Calls that are newer than the sandbox don't exist in it, and 32-bit calls are fatal."""
    newer = 467
    assert (place.do(f"result = call({newer}, -1, 0, 0, 0, 0)") == "ENOSYS") == (
        not place.is_open or release() < (6, 15))
    program = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("b814000000cd80c3"))  # getpid, as programs of 32 bits ask for it
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
print(ctypes.CFUNCTYPE(ctypes.c_int)(address)())
"""
    ended = place.do(f"result = subprocess.run([sys.executable, '-c', {program!r}]).returncode")
    # A kernel without such programs ends the process in another way.
    expected = [0, -signal.SIGSEGV] if place.is_open else [-signal.SIGSYS, -signal.SIGSEGV]
    assert int(ended) in expected


def release() -> tuple[int, ...]:
    """The kernel's version."""
    return tuple(int(part) for part in os.uname().release.split(".")[:2])


def test_privileges(place: Place) -> None:
    """This includes root's capabilities, which root doesn't have in the sandbox."""
    code = """
lines = dict(line.split(':\\t') for line in open('/proc/self/status').read().splitlines())
names = ('CapPrm', 'CapEff', 'CapBnd', 'NoNewPrivs', 'Seccomp')
result = [int(lines[name], 16) for name in names]
"""
    if place.is_open:
        assert place.do(code).endswith(", 0, 0]")
    else:
        assert place.do(code) == "[0, 0, 0, 1, 2]"


@pytest.mark.parametrize(
    "run",
    [
        "subprocess.run([sys.executable, '-c', CODE], capture_output=True).stderr.decode()",
        "subprocess.run(['/bin/sh', '-c', 'exec \"$0\" -c \"$1\"', sys.executable, CODE],"
        " capture_output=True).stderr.decode()",
        "by_fork(CODE)",
    ],
)
def test_children_inherit_it(place: Place, run: str) -> None:
    fork = """
def by_fork(code):
    end, other = os.pipe()
    if not os.fork():
        try:
            exec(code)
        except BaseException as error:
            os.write(other, type(error).__name__.encode())
        os._exit(0)
    os.close(other)
    os.wait()
    return os.read(end, 100).decode()
"""
    code = f"import socket; socket.socket(); open('{place.outside}/child', 'w')"
    answer = place.do(f"{fork}\nresult = {run.replace('CODE', repr(code))}")
    assert ("PermissionError" in answer) == (not place.is_open)


def test_its_output_reaches_the_server(place: Place) -> None:
    place.do("print('printed'); print('complained', file=sys.stderr, flush=True)")
    assert place.do("result = os.path.exists('/proc/self/fd/1')") == "True"
    # The output came in a different way, and the two may meet within a line.
    both = lambda: all(text in place.server.log() for text in ("printed", "complained"))  # noqa: E731
    wait_until(both, RESPONSE_SECONDS_MAX, "what it printed is in the server's output")
    is_pipe = place.do("result = [os.readlink(f'/proc/self/fd/{n}')[:4] for n in (1, 2)]")
    assert (is_pipe == "['pipe', 'pipe']") == (not place.is_open)


def test_what_works(place: Place) -> None:
    """This applies to threads, coroutines and programs."""
    code = """
import asyncio, concurrent.futures
async def run():
    process = await asyncio.create_subprocess_exec('/bin/echo', 'a', stdout=subprocess.PIPE)
    return (await process.communicate())[0]
with concurrent.futures.ThreadPoolExecutor() as pool:
    result = asyncio.run(run()), list(pool.map(abs, [-1, -2]))
"""
    assert place.do(code) == "(b'a\\n', [1, 2])"


def write_in_environment(repository: pathlib.Path) -> None:
    """A model with an environment that contains a script."""
    where = parameter("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/environment")
    write_model(repository, "in_environment", TEXTS + where, "sandbox")
    environment = repository / "in_environment" / "environment"
    for name in ("bin", "lib"):
        (environment / name).mkdir(parents=True)
    (environment / "bin" / "activate").write_text(
        "while read -r line; do\n"
        "case $line in Seccomp:*) export ACTIVATED=\"$line\";; esac\n"
        "done < /proc/self/status\n"
    )


def test_kinds_of_models(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Coroutines, environments, and two instances."""
    write_model(tmp_path, "coroutines", TEXTS, "sandbox")
    with (tmp_path / "coroutines" / "1" / "model.py").open("a") as file:
        file.write("TritonPythonModel = Coroutines\n")
    write_in_environment(tmp_path)
    write_model(tmp_path, "two", TEXTS + "instance_group { count: 2 kind: KIND_CPU }", "sandbox")
    with start_server(tmp_path, interpreter_flag(), SANDBOX) as server:
        server.wait_until_ready()
        assert do(server, "open('/dev/shm/a', 'w')", "coroutines").startswith("PermissionError")
        code = "result = os.environ['ACTIVATED'], os.environ['LD_LIBRARY_PATH'].split(':')[0]"
        library = tmp_path / "in_environment" / "environment" / "lib"
        # The environment's script is confined as well.
        assert do(server, code, "in_environment") == str(("Seccomp:\t2", str(library)))
        code = "result = os.environ['TMPDIR']"
        folders = {do(server, code, one) for one in ("two", "coroutines")}
        assert len(folders) == 2
        assert all(pathlib.Path(one).is_dir() for one in folders)
        assert len(children(server, "two")) == 2
    assert not any(pathlib.Path(one).exists() for one in folders)


def test_models_control_nothing(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """A load could otherwise change what the model itself may do."""
    write_model(tmp_path, "m", TEXTS, "sandbox")
    write_model(tmp_path, "other", TEXTS, "sandbox")
    flags = [interpreter_flag(), EXPLICIT, "--load-model=*"]
    for sandbox in ([], [SANDBOX]):
        with start_server(tmp_path, *flags, *sandbox) as server:
            server.wait_until_live()
            for way in ("unload", "load"):
                answer = do(server, f"pb_utils.{way}_model('other')")
                expected = f"a model in the sandbox can't {way} models" if sandbox else "done"
                assert expected in answer


def test_models_can_only_tighten(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The stricter of the flag and the configuration applies."""
    memory, processors = "GALATEA_MEMORY_LIMIT_MIB", "GALATEA_PROCESSOR_LIMIT"
    for name, sandbox, limit in [("loose", "false", "100000"), ("tight", "true", "128")]:
        own = parameter("GALATEA_SANDBOX", sandbox) + parameter(memory, limit)
        write_model(tmp_path, name, TEXTS + own + parameter(processors, limit), "sandbox")
    write_model(tmp_path, "wrong", TEXTS + parameter("GALATEA_SANDBOX", "yes"), "sandbox")
    code = """
import resource
result = call(41, 1, 1, 0) == 'EPERM', resource.getrlimit(resource.RLIMIT_DATA)[1] >> 20
"""
    strict = [SANDBOX, "--backend-config=python,memory-limit-mib=256"]
    for flags, loose in [([], "(False, 97"), (strict, "(True, 256)")]:
        with start_server(tmp_path, interpreter_flag(), EXPLICIT, *flags) as server:
            server.wait_until_live()
            statuses = {name: load(server, name) for name in ("loose", "tight", "wrong")}
            assert statuses["loose"] is None and statuses["tight"] is None, statuses
            assert "GALATEA_SANDBOX must be 'true' or 'false', not 'yes'" in str(statuses["wrong"])
            assert do(server, code, "tight") == "(True, 128)"
            if flags:
                assert do(server, code, "loose") == loose
            else:
                assert do(server, code, "loose") == "(False, 100000)"


def load(server: Server, model: str) -> str | None:
    """Loads a model, and returns the error."""
    reply = server.request("POST", f"/v2/repository/models/{model}/load", b"{}")
    return None if reply.status == 200 else reply.error()


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ("sandbox=yes", "sandbox must be 'true' or 'false', not 'yes'"),
        ("memory-limit-mib=1", "memory-limit-mib must be a number of at least 32, not '1'"),
        ("processor-limit=all", "processor-limit must be a number of at least 1, not 'all'"),
    ],
)
def test_wrong_settings(
    start_server: StartServer, tmp_path: pathlib.Path, setting: str, error: str
) -> None:
    write_model(tmp_path, "m", TEXTS, "sandbox")
    flag = f"--backend-config=python,{setting}"
    with start_server(tmp_path, interpreter_flag(), EXPLICIT, flag) as server:
        server.wait_until_live()
        assert error in str(load(server, "m"))


def test_libraries_are_no_way_out(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """A library next to the model would run in the server, and the model could have written it."""
    repository, backends = tmp_path / "models", tmp_path / "backends"
    write_model(repository, "beside", TEXTS, "sandbox")
    (repository / "beside" / "1" / "libtriton_python.so").write_text("no library")
    write_model(repository, "named", 'runtime: "libother.so"\n' + TEXTS, "sandbox")
    (backends / "python").mkdir(parents=True)
    (backends / "python" / "libtriton_python.so").write_text("no library")
    flags = [interpreter_flag(), EXPLICIT, f"--backend-directory={backends}"]
    for sandbox in (False, True):
        with start_server(repository, *flags, *[SANDBOX] * sandbox) as server:
            server.wait_until_live()
            beside, named = load(server, "beside"), load(server, "named")
            assert (beside is None) == sandbox, beside
            refused = "the sandbox of Python models can't hold 'libother.so'"
            assert (refused in str(named)) == sandbox, named
    library = "--backend-config=python,use-library=true"
    with start_server(repository, *flags, SANDBOX, library) as server:
        server.wait_until_live()
        assert "the sandbox of Python models can't hold 'libtriton_python.so'" in str(
            load(server, "beside"))


def test_backends_in_python(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """They have the settings of the backend `python`, unless they have their own, and precede
    built-in backends that Triton doesn't have."""
    repository, backends = tmp_path / "models", tmp_path / "backends"
    for name in ("held", "free", "text"):
        write_model(repository, name, TEXTS, None, backend=name)
        (backends / name).mkdir(parents=True)
        model = pathlib.Path(__file__).parent / "python_models" / "sandbox.py"
        shutil.copy(model, backends / name / "model.py")
    flags = [f"--backend-directory={backends}", SANDBOX, "--backend-config=free,sandbox=false"]
    with start_server(repository, interpreter_flag(), *flags) as server:
        server.wait_until_ready()
        for name in ("held", "text"):
            assert do(server, "socket.socket()", name).startswith("PermissionError")
        assert do(server, "socket.socket()", "free") == "done"


def test_versions_that_lie_elsewhere(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Their files would be the model's own."""
    repository = tmp_path / "models"
    write_model(repository, "m", TEXTS, "sandbox")
    (repository / "m" / "1").rename(tmp_path / "elsewhere")
    (repository / "m" / "1").symlink_to(tmp_path / "elsewhere")
    for sandbox in ([], [SANDBOX]):
        with start_server(repository, interpreter_flag(), EXPLICIT, *sandbox) as server:
            server.wait_until_live()
            error = load(server, "m")
            assert ("leads out of the model's directory" in str(error)) == bool(sandbox), error


def test_an_interpreter_that_is_missing(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path, "m", TEXTS, "sandbox")
    flag = "--backend-config=python,interpreter=/nowhere/python3"
    with start_server(tmp_path, flag, EXPLICIT, SANDBOX) as server:
        server.wait_until_live()
        assert "failed to start the interpreter '/nowhere/python3'" in str(load(server, "m"))


#: Makes a system call fail for the program that it becomes, as on a kernel without it.
WITHOUT_CALL = """
import ctypes, os, struct, sys
load, equal, give = 0x20, 0x15, 0x06
refused, allowed, ENOSYS = 0x00050000, 0x7fff0000, 38
program = b"".join(struct.pack("HBBI", *one) for one in [
    (load, 0, 0, 0), (equal, 0, 1, int(sys.argv[1])),
    (give, 0, 0, refused | ENOSYS), (give, 0, 0, allowed)])
code = ctypes.create_string_buffer(program)
filter = ctypes.create_string_buffer(struct.pack("H6xP", 4, ctypes.addressof(code)))
prctl = ctypes.CDLL(None).prctl
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, filter) == 0
os.execvp(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86-64")
@pytest.mark.parametrize("missing", [LANDLOCK_CREATE_RULESET, 317], ids=["landlock", "seccomp"])
def test_a_kernel_that_lacks_something(
    start_server: StartServer, tmp_path: pathlib.Path, missing: int
) -> None:
    """No model runs with only a part of the sandbox."""
    write_model(tmp_path, "m", TEXTS, "sandbox")
    launcher = [sys.executable, "-c", WITHOUT_CALL, str(missing)]
    for sandbox in ([], [SANDBOX]):
        flags = [interpreter_flag(), EXPLICIT, *sandbox]
        with start_server(tmp_path, *flags, launcher=launcher) as server:
            server.wait_until_live()
            needed = "needs Linux 6.12 or later with Landlock and seccomp"
            assert (needed in str(load(server, "m"))) == bool(sandbox)
            assert bool(children(server)) != bool(sandbox)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
@pytest.mark.parametrize(("taken", "refused"), [("-all", False), ("-setpcap", True)])
def test_root_in_a_container(
    start_server: StartServer, tmp_path: pathlib.Path, taken: str, refused: bool
) -> None:
    """The server runs as root without capabilities, and as root that can't take them from
    others."""
    write_model(tmp_path, "m", TEXTS, "sandbox")
    launcher = ["setpriv", f"--bounding-set={taken}", f"--inh-caps={taken}"]
    flags = [interpreter_flag(), EXPLICIT, SANDBOX]
    with start_server(tmp_path, *flags, launcher=launcher) as server:
        server.wait_until_live()
        error = load(server, "m")
        assert ("can't drop the privileges of root" in str(error)) == refused, error
        assert refused or do(server, "socket.socket()").startswith("PermissionError")


@pytest.mark.parametrize("way", ["execute", "sleep"])
def test_it_ends_with_the_server(
    start_server: StartServer, tmp_path: pathlib.Path, way: str
) -> None:
    """This also holds if the server is killed, whatever the model then does."""
    write_model(tmp_path, "m", TEXTS, "sandbox")
    with start_server(tmp_path, interpreter_flag(), SANDBOX) as server:
        server.wait_until_ready()
        (number,) = children(server)
        # sleep: hangs until the server ends the worker
        code = {"execute": "while True: pass", "sleep": "import time; time.sleep(1000)"}[way]
        code = f"open('{tmp_path}/m/1/started', 'w')\n{code}"
        started = tmp_path / "m" / "1" / "started"
        thread = threading.Thread(target=ignoring_errors, args=(server, code))
        thread.start()
        wait_until(started.exists, RESPONSE_SECONDS_MAX, "it executes")
        server.process.kill()
        server.process.wait()
        thread.join()
        gone = lambda: not pathlib.Path(f"/proc/{number}").exists()  # noqa: E731
        wait_until(gone, RESPONSE_SECONDS_MAX, "the worker is gone")


def ignoring_errors(server: Server, code: str) -> None:
    """Sends a request that the server's end interrupts."""
    with contextlib.suppress(OSError):
        do(server, code)


@pytest.fixture(scope="module")
def limited(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Two models with limits and no sandbox."""
    folder = tmp_path_factory.mktemp("limited")
    write_model(folder, "m", TEXTS, "sandbox")
    write_model(folder, "good", TEXTS, "sandbox")
    memory = "--backend-config=python,memory-limit-mib=512"
    processors = "--backend-config=python,processor-limit=1"
    with start_server(folder, interpreter_flag(), memory, processors) as server:
        yield server.wait_until_ready()
    assert server.process.returncode == 0


PID = "result = os.getpid()"


def test_memory_that_is_asked_for(limited: Server) -> None:
    """With four gigabytes, the request fails, the model continues to serve, and others don't
    notice."""
    before, other = do(limited, PID), do(limited, PID, "good")
    assert do(limited, "import numpy; numpy.ones(1 << 29)").startswith("MemoryError")
    assert do(limited, "result = len(bytes(4 << 30))").startswith("MemoryError")
    assert (do(limited, PID), do(limited, PID, "good")) == (before, other)


def test_memory_without_which_a_model_ends(limited: Server) -> None:
    """The requests that it holds fail, and it is back immediately."""
    before, other = do(limited, PID), do(limited, PID, "good")
    # A library that doesn't expect this.
    answer = do(limited, "try: bytes(4 << 30)\nexcept MemoryError: os.abort()")
    assert "500 Stub process 'm_0' is not healthy." in answer
    assert "was ended by signal 6" in answer
    assert do(limited, PID) not in (before, answer)
    assert do(limited, PID, "good") == other


def test_memory_of_children(limited: Server) -> None:
    code = "subprocess.run([sys.executable, '-c', 'bytes(4 << 30)'], capture_output=True)"
    assert "MemoryError" in do(limited, f"result = {code}.stderr.decode()")


def test_inputs_longer_than_the_limit(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The server limits shared memory as well."""
    write_model(tmp_path, "m", TEXTS + parameter("GALATEA_MEMORY_LIMIT_MIB", "32"), None)
    (tmp_path / "m" / "1" / "model.py").write_text(WITHOUT_NUMPY)
    with start_server(tmp_path, interpreter_flag()) as server:
        server.wait_until_ready()
        assert do(server, "a" * (30 << 20)) == "500 seen"
        assert "the shared memory of the Python model is full" in do(server, "a" * (33 << 20))
        assert do(server, "a") == "500 seen"


#: A model that starts in little memory.
WITHOUT_NUMPY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        seen = pb_utils.InferenceResponse(error=pb_utils.TritonError("seen"))
        return [seen for _ in requests]
"""


def test_processors(limited: Server) -> None:
    for model in ("m", "good"):
        assert do(limited, "result = len(os.sched_getaffinity(0))", model) == "1"


def test_limits_in_the_sandbox_stay(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path, "m", TEXTS, "sandbox")
    flags = ["--backend-config=python,memory-limit-mib=512",
             "--backend-config=python,processor-limit=1"]
    with start_server(tmp_path, interpreter_flag(), SANDBOX, *flags) as server:
        server.wait_until_ready()
        raised = do(server, "import resource; resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))")
        assert raised.startswith("ValueError: not allowed to raise maximum limit")
        raised = do(server, "os.sched_setaffinity(0, range(os.cpu_count()))")
        assert raised.startswith("PermissionError")
        assert do(server, "result = len(bytes(4 << 30))").startswith("MemoryError")
