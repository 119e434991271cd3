"""The workloads: their requests, number of clients, and protocol."""

from __future__ import annotations

import dataclasses
import enum

from .models import (
    CACHED,
    HOSTED,
    HOSTED_CACHE,
    OWN_CACHE,
    PYTHON,
    PYTHON_ASYNC,
    PYTHON_BLS,
    PYTHON_DECOUPLED,
    PYTHON_ENSEMBLE,
    PYTHON_STEPS,
    STEP,
    THREE_STEPS,
)

MEBIBYTE = 1 << 20
# Workloads in which the kernel and the load generator may take more time than the server.
COMPARED_WITH_A_BARE_LOOP = (
    "identity16-http-1",
    "identity16-http-32",
    "identity16-http-32-h2load",
    "simple-http-32",
    "mlp-http-32",
)
FLOAT_BYTES = 4


class Client(enum.Enum):
    """The load generators."""

    PERF_ANALYZER = "perf_analyzer"
    H2LOAD = "h2load"


@dataclasses.dataclass(frozen=True)
class Load:
    """One model with a closed loop of clients."""

    name: str
    model: str
    protocol: str
    concurrency: int
    shapes: tuple[str, ...] = ()
    shared_memory: bool = False
    # The protocol uses TLS.
    tls: bool = False
    compare_direct: bool = False
    # It is compared with a loop that sends recorded bytes.
    compare_bare: bool = False
    # The model's instances have the server's core to themselves; the rest of the server shares the
    # other core with the load.
    apart: bool = False
    # The number of executions of a model per request; the time in ONNX Runtime isn't the server's.
    executes: tuple[str, int] | None = None
    # The server has this response cache, which serves all requests.
    cache: str | None = None
    # A factor for the duration of a measurement, because slow requests need longer for a fair
    # count.
    longer: int = 1
    client: Client = Client.PERF_ANALYZER
    # The number on each connection of h2load, over gRPC.
    streams: int = 8
    # The models that the load's model calls.
    called: tuple[str, ...] = ()
    # The responses are sent on a separate stream, however many there are.
    is_streamed: bool = False

    def model_names(self) -> tuple[str, ...]:
        """The models that the server must have."""
        if self.executes is None or self.executes[0] == self.model:
            return (self.model, *self.called)
        return (self.model, self.executes[0])

    def has_rival(self) -> bool:
        """Returns true if Triton can serve the load; its HTTP server doesn't support TLS."""
        return not self.tls or self.protocol != "http"

    def needs(self, client: Client) -> bool:
        """Returns true if this load generator can produce the load."""
        return self.client is client


@dataclasses.dataclass(frozen=True)
class Startup:
    """A workload without load: the time until several models are ready, and the idle server's
    memory."""

    name: str
    models: tuple[str, ...]
    # The number of copies of each model in the repository, under different names.
    copies: int = 1

    def model_names(self) -> tuple[str, ...]:
        """The models that the server must have."""
        return self.models

    def has_rival(self) -> bool:
        """Triton can do the same."""
        return True

    def needs(self, client: Client) -> bool:
        """Only the harness sends requests to the idle server."""
        return False


Workload = Load | Startup


def _identity(size: str, elements: int, protocol: str, concurrency: int) -> Load:
    return Load(
        name=f"identity{size}-{protocol}-{concurrency}",
        model="identity",
        protocol=protocol,
        concurrency=concurrency,
        shapes=(f"INPUT0:{elements}",),
    )


def _steps(model: str, count: int, protocol: str, concurrency: int) -> Load:
    names = {STEP: "one-step", THREE_STEPS: "three-steps"}
    return Load(
        name=f"{names[model]}-{protocol}-{concurrency}",
        model=model,
        protocol=protocol,
        concurrency=concurrency,
        shapes=(f"{'IN' if model == THREE_STEPS else 'INPUT0'}:16",),
        executes=(STEP, count),
    )


def _hosted(protocol: str, concurrency: int) -> Load:
    """The same compiled backend in both servers."""
    load = _identity("16", 16, protocol, concurrency)
    return dataclasses.replace(load, name=f"hosted16-{protocol}-{concurrency}", model=HOSTED)


def _python(size: str, elements: int, protocol: str, clients: int) -> Load:
    """The same Python model in both servers."""
    load = _identity(size, elements, protocol, clients)
    return dataclasses.replace(load, name=f"python{size}-{protocol}-{clients}", model=PYTHON)


def _python_rows() -> list[Workload]:
    """Python models."""
    both = ("http", "grpc")
    loads = [_python("16", 16, kind, clients) for kind in both for clients in (1, 8, 32)]
    loads += [_python("-1MiB", MEBIBYTE // FLOAT_BYTES, kind, 8) for kind in both]
    for name, model, tensor in (
        ("bls", PYTHON_BLS, "INPUT0"),
        ("ensemble", PYTHON_ENSEMBLE, "IN"),
    ):
        loads += [
            Load(
                name=f"python-{name}-{kind}-{clients}",
                model=model,
                protocol=kind,
                concurrency=clients,
                shapes=(f"{tensor}:16",),
                called=PYTHON_STEPS,
            )
            for kind in both
            for clients in (1, 8)
        ]
    # A request of h2load is a stream with all its responses.
    loads += [
        Load(
            name=f"python-{name}-grpc-{clients}-h2load",
            model=model,
            protocol="grpc",
            concurrency=clients,
            client=Client.H2LOAD,
            is_streamed=True,
            longer=longer,
        )
        for name, model, clients, longer in (
            ("decoupled-1000", PYTHON_DECOUPLED, 4, 2),
            ("async-50ms", PYTHON_ASYNC, 32, 1),
        )
    ]
    return [*loads, Startup("startup-python-20", (PYTHON,), copies=20)]


def _cached(cache: str) -> list[Load]:
    """Requests that a cache serves; all are equal to the first one."""
    kind = {OWN_CACHE: "cached", HOSTED_CACHE: "hosted-cache"}[cache]
    small, large = "16", "-1MiB"
    loads = [_identity(small, 16, protocol, 1) for protocol in ("http", "grpc")]
    loads += [_lean(_identity(small, 16, protocol, 32)) for protocol in ("http", "grpc")]
    loads += [
        _identity(large, MEBIBYTE // FLOAT_BYTES, protocol, 8) for protocol in ("http", "grpc")
    ]
    return [
        dataclasses.replace(
            load, name=load.name.replace("identity", kind, 1), model=CACHED, cache=cache
        )
        for load in loads
    ]


def _lean(load: Load) -> Load:
    return dataclasses.replace(load, name=f"{load.name}-h2load", client=Client.H2LOAD)


def all_workloads() -> list[Workload]:
    """Returns all workloads in the order in which they run."""
    both = ("http", "grpc")
    large = MEBIBYTE // FLOAT_BYTES
    five = ("identity", "simple", "simple_string", "mlp", "convnet")
    loads: list[Workload] = [Startup("startup", five), Startup("startup-200", five, copies=40)]
    loads += [_identity("16", 16, kind, clients) for kind in both for clients in (1, 8, 32, 64)]
    loads += [_lean(_identity("16", 16, kind, clients)) for kind in both for clients in (8, 32, 64)]
    loads += [_hosted(kind, clients) for kind in both for clients in (1, 32)]
    loads += [_lean(_hosted(kind, 32)) for kind in both]
    loads += [*_python_rows(), *_cached(OWN_CACHE), *_cached(HOSTED_CACHE)]
    loads += [_identity("-1MiB", large, kind, 8) for kind in both]
    loads += [
        dataclasses.replace(load, name=f"{load.name}-tls", tls=True)
        for load in (_identity("-1MiB", large, kind, 8) for kind in both)
    ]
    loads += [
        dataclasses.replace(_identity("-16MiB", 16 * large, kind, 4), longer=2) for kind in both
    ]
    loads += [
        dataclasses.replace(
            _identity("-1MiB", large, kind, clients),
            name=f"identity-1MiB-shm-{kind}-{clients}",
            shared_memory=True,
        )
        for kind in both
        for clients in (8, 32)
    ]
    for model in ("simple", "mlp"):
        loads += [Load(f"{model}-{kind}-32", model, kind, 32) for kind in both]
    for model, count in ((STEP, 1), (THREE_STEPS, 3)):
        steps = [_steps(model, count, kind, clients) for kind in both for clients in (1, 8, 64)]
        loads += [*steps, *(_lean(load) for load in steps if load.concurrency > 1)]
    for model in ("simple", "mlp"):
        loads += [_lean(Load(f"{model}-{kind}-32", model, kind, 32)) for kind in both]
    images = [Load(f"convnet-{kind}-16", "convnet", kind, 16, compare_direct=True) for kind in both]
    # One stream per connection, because several large bodies on a connection would only wait for
    # each other.
    loads += [*images, *(dataclasses.replace(_lean(load), streams=1) for load in images)]
    loads += [
        dataclasses.replace(load, name=f"{load.name}-apart", apart=True)
        for load in loads[-len(images) :]
    ]
    loads.append(
        Load("convnet-shm-16", "convnet", "http", 16, shared_memory=True, compare_direct=True)
    )
    return [
        dataclasses.replace(load, compare_bare=True)
        if isinstance(load, Load) and load.name in COMPARED_WITH_A_BARE_LOOP
        else load
        for load in loads
    ]


def select(workloads: list[Workload], filters: list[str]) -> list[Workload]:
    """Keeps the workloads whose names contain one of the filters; keeps all if there are no
    filters."""
    if not filters:
        return workloads
    return [work for work in workloads if any(text in work.name for text in filters)]
