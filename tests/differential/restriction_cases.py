"""Every API behind a restriction of its category, each with its own key.

Requests with the correct key use a method that the endpoint doesn't have, so their responses
don't depend on the server's capabilities.
"""

from __future__ import annotations

from collections.abc import Iterator

from cases import Case

#: The categories with their keys, and the parts of their paths over HTTP.
CATEGORIES = {
    "health": ["/v2/health/live", "/v2/health/ready", "/v2/models/m/ready"],
    "metadata": ["/v2", "/v2/models/m", "/v2/models/m/versions/1"],
    "inference": [
        "/v2/models/m/infer",
        "/v2/models/m/versions/1/infer",
        "/v2/models/m/generate",
        "/v2/models/m/generate_stream",
    ],
    "shared-memory": [
        f"/v2/{kind}sharedmemory/{path}"
        for kind in ["system", "cuda"]
        for path in ["status", "region/r/status", "region/r/register", "unregister"]
    ],
    "model-config": ["/v2/models/m/config", "/v2/models/m/versions/1/config"],
    "model-repository": [
        "/v2/repository/index",
        "/v2/repository/r/index",
        "/v2/repository/models/m/load",
        "/v2/repository/models/m/unload",
    ],
    "statistics": ["/v2/models/stats", "/v2/models/m/stats", "/v2/models/m/versions/1/stats"],
    "trace": ["/v2/trace/setting", "/v2/models/m/trace/setting"],
    "logging": ["/v2/logging"],
}

#: The methods of gRPC whose empty requests both servers take, and the others.
METHODS = {
    "health": ["ServerLive", "ServerReady", "ModelReady"],
    "metadata": ["ServerMetadata", "ModelMetadata"],
    "inference": ["ModelInfer"],
    "shared-memory": [
        f"{kind}SharedMemory{action}"
        for kind in ["System", "Cuda"]
        for action in ["Status", "Register", "Unregister"]
    ],
    "model-config": ["ModelConfig"],
    "model-repository": ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"],
    "statistics": ["ModelStatistics"],
    "trace": ["TraceSetting"],
    "logging": ["LogSettings"],
}

FLAGS = (
    *(f"--http-restricted-api={name}:Key-{name}=value={name}" for name in CATEGORIES),
    *(
        f"--grpc-restricted-protocol={name}:key-{name}=value={name}"
        for name in METHODS
        if name != "trace"
    ),
    # Metadata names have no capital letters.
    "--grpc-restricted-protocol=trace:Key-trace=value",
)


def http_cases() -> Iterator[Case]:
    """Every path without a key, with wrong keys and with the correct key."""
    for category, paths in CATEGORIES.items():
        key, value = f"key-{category}", f"value={category}"
        headers = {
            "no key": (),
            "a wrong key": ((key, value[:-1]),),
            "a longer key": ((key, f"{value}x"),),
            "the key of another header": ((f"{key}-x", value),),
            "a wrong key first": ((key, "x"), (key, value)),
            "the right key": ((key, value),),
        }
        for path in paths:
            for name, given in headers.items():
                yield Case(f"PUT {path} with {name}", "PUT", path, given)
            for method in ["GET", "POST"]:
                yield Case(f"{method} {path} with no key", method, path)
    yield Case("an unknown path", "GET", "/v2/nothing")
    yield Case("a right key", "GET", "/v2", (("KEY-METADATA", "value=metadata"),))


def grpc_cases() -> Iterator[Case]:
    """The same over gRPC."""
    for category, methods in METHODS.items():
        key, value = f"triton-grpc-protocol-key-{category}", f"value={category}"
        metadata = {
            "no key": (),
            "a wrong key": ((key, value[:-1]),),
            "a key without the prefix": ((f"key-{category}", value),),
            "a wrong key first": ((key, "x"), (key, value)),
        }
        for method in methods:
            for name, given in metadata.items():
                yield Case(f"{method} with {name}", rpc=method, message={}, metadata=given)
    key = "triton-grpc-protocol-key-"
    for method in ["ServerLive", "RepositoryIndex"]:
        category = next(name for name, methods in METHODS.items() if method in methods)
        yield Case(
            f"{method} with the right key",
            rpc=method,
            message={},
            metadata=((f"{key}{category}", f"value={category}"),),
        )
    yield Case(
        "a key with a capital letter",
        rpc="TraceSetting",
        message={},
        metadata=((f"{key}trace", "value"),),
    )
    for name, given in [("no key", ()), ("a wrong key", ((f"{key}inference", "x"),))]:
        yield Case(
            f"a stream with {name}", rpc="ModelStreamInfer", messages=({},), metadata=given
        )
        yield Case(
            f"an empty stream with {name}", rpc="ModelStreamInfer", messages=(), metadata=given
        )


def restriction_cases() -> list[Case]:
    """All cases."""
    return [*http_cases(), *grpc_cases()]
