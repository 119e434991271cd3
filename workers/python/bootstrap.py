"""First code of a worker: receives the sockets and the sources, then starts.

The server sends this file over socket A, which is standard input. It runs in `__main__` under
`python -c`, so `__main__` has no file and no spec, and `multiprocessing` doesn't rerun it in
processes that it spawns.
"""

import importlib.machinery
import json
import linecache
import os
import socket
import sys

_PREFIX = "<galatea worker>/"


class _Sources:
    """Imports the worker's modules from the sources that the server sent."""

    def __init__(self, sources):
        self.sources = sources
        self.prepared = False

    def is_package(self, fullname):
        """Tells if other modules of the bundle lie below this one."""
        below = fullname + "."
        return any(name.startswith(below) for name in self.sources)

    def get_source(self, fullname):
        """Returns the source of a module, for tracebacks and `inspect`."""
        if fullname not in self.sources:
            raise ImportError(f"no module {fullname!r} in the worker", name=fullname)
        return self.sources[fullname]

    def get_filename(self, fullname):
        """Returns the name under which tracebacks show a module."""
        tail = "/__init__.py" if self.is_package(fullname) else ".py"
        return _PREFIX + fullname.replace(".", "/") + tail

    def get_code(self, fullname):
        """Returns the compiled code of a module."""
        return compile(self.get_source(fullname), self.get_filename(fullname), "exec",
                       dont_inherit=True)

    def find_spec(self, fullname, path=None, target=None):
        """Returns the spec of a module of the bundle, None for all others."""
        if fullname not in self.sources:
            if fullname == "multiprocessing" and not self.prepared:
                self.prepared = True
                from galatea_worker import children
                children.prepare(self.sources)
            if fullname == "numpy" and "galatea_worker.template" in sys.modules:
                return sys.modules["galatea_worker.template"].find_numpy()
            return None
        spec = importlib.machinery.ModuleSpec(
            fullname, self, origin=self.get_filename(fullname),
            is_package=self.is_package(fullname))
        spec.has_location = True
        return spec

    def create_module(self, spec):
        """Returns None, which means the usual kind of module."""
        return None

    def exec_module(self, module):
        """Runs a module; stores its lines where `linecache` finds them."""
        name = module.__name__
        text = self.get_source(name)
        file = self.get_filename(name)
        linecache.cache[file] = (lambda: text,)
        exec(self.get_code(name), module.__dict__)


def _exactly(sock, count):
    """Reads `count` bytes; a server that ends early ends the worker."""
    data = bytearray()
    while len(data) < count:
        chunk = sock.recv(min(count - len(data), 1 << 20))
        if not chunk:
            os._exit(1)
        data += chunk
    return bytes(data)


def _receive_fds(sock, count):
    """Receives `count` descriptors with one byte of data."""
    _, fds, _, _ = socket.recv_fds(sock, 1, count)
    if len(fds) != count:
        sys.stderr.write("python worker: the server sent %d descriptors\n" % len(fds))
        os._exit(70)
    for fd in fds:
        os.set_inheritable(fd, False)
    return list(fds)


def _take_stdin(sock):
    """Moves socket A off descriptor 0, where children would find it."""
    own = socket.socket(fileno=os.dup(0))
    own.set_inheritable(False)
    sock.detach()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return own


def _close_others(own):
    """Closes descriptors that a program hosting the server left open for its children."""
    # Older versions close them one by one.
    highest = 2**31 - 1 if sys.version_info >= (3, 10) else min(os.sysconf("SC_OPEN_MAX"), 2**20)
    ends = sorted(own) + [highest]
    for low, high in zip([-1] + ends, ends):
        if low + 1 < high:  # the end 0 would mean all
            os.closerange(low + 1, high)


def _start(sock):
    """Receives the bundle and the descriptors and runs the worker."""
    sock_a = _take_stdin(sock)
    size = int.from_bytes(_exactly(sock_a, 4), "little")
    sources = json.loads(_exactly(sock_a, size))
    names, ways = sys.argv[1:3], sys.argv[3:]
    is_template = ways[:1] == ["template"]
    fds = _receive_fds(sock_a, 1 if is_template else 5)
    sys.meta_path.insert(0, _Sources(sources))
    if sys.path and sys.path[0] == "":
        del sys.path[0]
    if ways == ["sandbox"]:
        _close_others({0, 1, 2, sock_a.fileno(), *fds})
    sys.argv[:] = [""]
    if is_template:
        from galatea_worker import template
        sock_a, fds, names = template.serve(sock_a, fds)
    from galatea_worker import main
    main.run(sock_a, fds, names)


_start(s)  # noqa: F821  the command line of the server made `s`
