"""The names of Triton's package `tritonfrontend`: ``from galatea import tritonfrontend``."""

from __future__ import annotations

from .. import (
    KServeGrpc,
    KServeHttp,
    Metrics,
)

__all__ = [
    "KServeGrpc",
    "KServeHttp",
    "Metrics",
]
