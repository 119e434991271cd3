"""What hostile clients must not achieve."""

from __future__ import annotations

import concurrent.futures
import json
import threading

import pytest

from raw_http import Connection, get
from server import Server

SCRAPERS = 10
SCRAPES_IN_A_ROW = 20

ONE_ROUND = {
    "inputs": [{"name": "ROUNDS", "shape": [1, 1], "datatype": "INT64", "data": [1]}],
}


def inferences(server: Server, path: str) -> int:
    """How often the model has executed, by one of the pages with statistics."""
    if path == "/metrics":
        name = 'nv_inference_count{model="onnx_slow",version="1"}'
        (line,) = (line for line in server.metrics().splitlines() if line.startswith(name))
        return int(float(line.split()[-1]))
    (entry,) = (
        entry
        for entry in server.get("/v2/models/stats").json()["model_stats"]
        if entry["name"] == "onnx_slow"
    )
    return entry["inference_count"]


@pytest.mark.galatea_only
def test_scraping_leaves_room_for_inference_and_stays_exact(server: Server) -> None:
    """Pipelined scrapes hold up no inference, and no page is older than the request for it."""
    stop = threading.Event()
    pages = get("/v2/models/stats") + get("/v2/models/onnx_slow/scheduler")

    def scrape() -> None:
        with Connection(server) as connection:
            while not stop.is_set():
                connection.send(pages * SCRAPES_IN_A_ROW)
                for _ in range(2 * SCRAPES_IN_A_ROW):
                    status, body = connection.read_response() or (0, b"")
                    assert status == 200 and json.loads(body)

    with concurrent.futures.ThreadPoolExecutor(SCRAPERS) as pool:
        scrapers = [pool.submit(scrape) for _ in range(SCRAPERS)]
        try:
            count = inferences(server, "/metrics")
            for path in ["/metrics", "/v2/models/stats"] * 10:
                assert server.infer("onnx_slow", ONE_ROUND).status == 200
                count += 1
                assert inferences(server, path) == count
        finally:
            stop.set()
    for scraper in scrapers:
        scraper.result()
