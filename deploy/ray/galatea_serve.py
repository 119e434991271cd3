"""Galatea on Ray Serve: each replica is a server with its models, in the replica's own process.

`serve run galatea_serve:app model_repository=/models` deploys it, and `serve deploy serve.yaml`
deploys it with the settings in that file. docs/scaling.md describes the settings.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Optional, Union

import aiohttp
import galatea
import numpy
import ray
import yarl
from ray import serve
from ray.exceptions import ObjectLostError, RayActorError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

Arrays = dict[str, numpy.ndarray[Any, Any]]

#: Headers that speak of one connection, and not of the request or the response.
OF_A_CONNECTION = {b"connection", b"expect", b"keep-alive", b"transfer-encoding", b"upgrade"}


@serve.deployment(
    # The number of requests that a replica may have. Requests that Serve holds back can't share a
    # batch.
    max_ongoing_requests=256,
    health_check_period_s=5,
    # This is longer than the longest request, because a replica that is stopped still responds to
    # the requests that it has.
    graceful_shutdown_timeout_s=60,
)
class Galatea:
    """A replica: a server with its models, for Serve's handles and for HTTP."""

    _server: Optional[galatea.Server] = None

    def __init__(self, model_repository: Union[str, list[str]], **options: Any) -> None:
        """Loads the models. If a model can't be loaded, the deployment fails.

        `options` are those of `galatea.Options`.
        """
        server = galatea.Server(model_repository=model_repository, **options)
        self._server = server.start(wait_until_ready=True)
        # For requests over HTTP, which come through Serve; it may be any port of the machine
        # itself.
        self._http = galatea.KServeHttp(
            server, galatea.KServeHttp.Options(address="127.0.0.1", port=0)
        )
        self._http.start()
        self._session: Optional[aiohttp.ClientSession] = None

    async def infer(self, model: str, inputs: Arrays, **options: Any) -> Arrays:
        """The outputs of a model, by name. Requests from all callers share batches.

        `options` are those of `galatea.Model.infer`.
        """
        found = [outputs async for outputs in self.stream(model, inputs, **options)]
        if len(found) != 1:
            raise ValueError(f"'{model}' sent {len(found)} responses: call 'stream'")
        return found[0]

    async def stream(self, model: str, inputs: Arrays, **options: Any) -> AsyncIterator[Arrays]:
        """The outputs of each response of a decoupled model, for `handle.options(stream=True)`."""
        assert self._server is not None
        responses = self._server.model(model).async_infer(inputs=inputs, **options)
        try:
            async for response in responses:
                if response.outputs:
                    yield {name: output.__array__() for name, output in response.outputs.items()}
        finally:
            # This applies if the caller has left. Otherwise, the request has completed, and
            # nothing is cancelled.
            responses.cancel()

    async def __call__(self, request: Request) -> Response:
        """All protocols that Galatea supports over HTTP."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
                skip_auto_headers=["Accept", "Accept-Encoding", "Content-Type", "User-Agent"],
            )
        path, query = request.scope["raw_path"].decode(), request.scope["query_string"].decode()
        reply = await self._session.request(
            request.method,
            yarl.URL(f"http://127.0.0.1:{self._http.port}{path}?{query}", encoded=True),
            headers=[(name.decode("latin-1"), value.decode("latin-1"))
                     for name, value in request.headers.raw if name not in OF_A_CONNECTION],
            data=await request.body() or None,
            allow_redirects=False,
        )
        response = StreamingResponse(reply.content.iter_any(), reply.status)
        response.raw_headers = [
            (name.lower(), value)
            for name, value in reply.raw_headers
            # Serve adds the date itself.
            if name.lower() not in OF_A_CONNECTION | {b"date"}
        ]
        return response

    def statistics(self, model: str) -> dict[str, Any]:
        """The counts and times of a model in one replica, with the replica's name."""
        assert self._server is not None
        return {
            "replica": serve.get_replica_context().replica_id.unique_id,
            "node": ray.get_runtime_context().get_node_id(),
            **self._server.model(model).statistics(),
        }

    def check_health(self) -> None:
        """Serve calls this repeatedly, and replaces a replica that isn't ready three times."""
        if self._server is None or not self._server.ready():
            raise RuntimeError("the server is not ready")

    def __del__(self) -> None:
        """Serve calls this when the replica has responded to its last request."""
        if self._server is not None:
            server, self._server = self._server, None
            self._http.stop()
            server.stop()


def app(arguments: dict[str, Any]) -> serve.Application:
    """The application, for `import_path`; its arguments are a replica's."""
    return Galatea.bind(**arguments)


async def infer_with_one_retry(
    handle: DeploymentHandle, model: str, inputs: Arrays, **options: Any
) -> Arrays:
    """Sends a request, and sends it again if the replica that had it has died.

    Serve itself sends a request again only if no replica had accepted it.
    """
    try:
        return await handle.infer.remote(model, inputs, **options)
    except (RayActorError, ObjectLostError):
        return await handle.infer.remote(model, inputs, **options)
