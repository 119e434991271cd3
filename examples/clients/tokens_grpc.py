"""Requests tokens from the model `token_counter` and prints them as they arrive.

A second request joins the executions of the first one, and leaves when it has its tokens.
"""

from __future__ import annotations

import argparse
import queue

import numpy
import tritonclient.grpc as client

MODEL = "token_counter"
FINAL = "triton_final_response"

StreamReply = tuple[client.InferResult | None, Exception | None]


def request_tokens(server: client.InferenceServerClient, name: str, count: int) -> None:
    """Sends a request for `count` tokens on the stream."""
    tensor = client.InferInput("COUNT", [1, 1], "INT32")
    tensor.set_data_from_numpy(numpy.array([[count]], numpy.int32))
    server.async_stream_infer(
        MODEL, [tensor], request_id=name, enable_empty_final_response=True
    )


def main() -> None:
    """Runs the example."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", default="localhost:8001")
    parser.add_argument("--count", type=int, default=6, help="tokens of the first request")
    options = parser.parse_args()

    responses: queue.Queue[StreamReply] = queue.Queue()
    with client.InferenceServerClient(options.url) as server:
        server.start_stream(lambda result, error: responses.put((result, error)))
        request_tokens(server, "first", options.count)
        waiting = {"first"}
        joined = False
        while waiting:
            result, error = responses.get(timeout=60)
            if error is not None or result is None:
                raise SystemExit(f"the server answered with an error: {error}")
            response = result.get_response()
            token, live = result.as_numpy("TOKEN"), result.as_numpy("LIVE")
            if token is not None and live is not None:
                print(f"{response.id:6} token {token[0, 0]}, shared by {live[0, 0]}")
            if not joined:
                request_tokens(server, "second", 2)
                waiting.add("second")
                joined = True
            if response.parameters[FINAL].bool_param:
                print(f"{response.id:6} ends")
                waiting.remove(response.id)


if __name__ == "__main__":
    main()
