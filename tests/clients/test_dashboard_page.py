"""Tests of the dashboard's page in a browser: its contents, and its operation by keyboard alone."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import subprocess
import threading
from collections.abc import Iterator

import browser as browsers
import environments
import pytest
from browser import Browser
from conftest import StartServer
from demand_models import MODEL_BYTES, infer, serving, value_of, write_identity
from events import EventModel
from openai_door import CHAT, chat, open_door
from server import REQUEST_SECONDS_MAX, Server, free_ports, wait_until

pytestmark = [
    pytest.mark.galatea_only,  # Triton has no such page.
    pytest.mark.skipif(
        not browsers.is_installed(), reason="needs Debian's packages chromium and chromium-driver"
    ),
]

FLAG = "--allow-dashboard=true"
#: Connections that the browser keeps hold up the end, as those of any client do.
QUICK_END = "--exit-timeout-secs=1"
EXPLICIT = "--model-control-mode=explicit"
NAMES = ("first", "second", "third")
BATCHED = "instance_group { count: 1 kind: KIND_CPU } dynamic_batching { }"
#: A name that would be an image with a script, if it became HTML.
HOSTILE = "<img src=x onerror=document.title=1>"
LIVE = "return document.getElementById('connection').dataset.state === 'live'"
SHOWN = "return [...document.querySelectorAll('.name')].map((one) => one.textContent)"
AXE = "axe-core-python==0.1.0"
IDENTITY = """
backend: "identity"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_STRING dims: [ 1 ] }
input { name: "INPUT1" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ -1 ] }
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, EventModel]:
    """Three models whose executions can be held, and two that aren't loaded."""
    repository = tmp_path_factory.mktemp("page") / "models"
    held = {name: EventModel(repository, name, BATCHED, max_batch_size=4) for name in NAMES}
    for name, config in {
        "copies": IDENTITY,
        HOSTILE: IDENTITY,
        "broken": 'backend: "<img src=x onerror=document.title=2>"',
    }.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    return held


@pytest.fixture(scope="module")
def server(start_server: StartServer, models: dict[str, EventModel]) -> Iterator[Server]:
    """A server with a dashboard, whose models clients may load."""
    repository = models["first"].folder.parent
    named = [f"--load-model={name}" for name in NAMES]
    with start_server(repository, FLAG, EXPLICIT, QUICK_END, *named) as running:
        yield running.wait_until_ready()


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The browser that all tests share."""
    with browsers.browser(tmp_path_factory.mktemp("browser")) as one:
        one.resize(1280, 900)
        one.prefer()
        yield one


@pytest.fixture
def page(session: Browser, server: Server) -> Browser:
    """The browser with the page, which shows the first three models."""
    return opened(session, server)


def opened(session: Browser, server: Server) -> Browser:
    """Opens the page, and waits until it is live."""
    session.open("about:blank")
    session.log("browser")
    session.requested()
    session.open(f"http://{server.http_url}/dashboard")
    session.wait_for(LIVE, "the page is live")
    details = "button[aria-expanded]:not([hidden])"
    session.wait_for(f"return document.querySelectorAll('{details}').length >= 3")
    return session


def seen(page: Browser, name: str) -> str:
    """The text of a model's row."""
    script = """
      const row = [...document.querySelectorAll('tr.model')]
        .find((one) => one.querySelector('.name').textContent === arguments[0]);
      return row ? row.innerText : '';
    """
    return page.run(script, name)


def wait_for_state(page: Browser, name: str, state: str) -> None:
    """Waits until a model's row shows this text."""
    script = f"""
      return [...document.querySelectorAll('tr.model')].some((one) =>
        one.querySelector('.name').textContent === {name!r}
        && one.querySelector('.state').textContent === {state!r});
    """
    page.wait_for(script, f"{name} is {state}")


def button(label: str) -> str:
    """The condition for the focused element to be this button."""
    return f"it.getAttribute('aria-label') === {label!r}"


def test_executions_of_models_side_by_side(
    page: Browser, server: Server, models: dict[str, EventModel]
) -> None:
    # The middle of each instance's row, near the right edge.
    colors = """
      const box = document.getElementById('bars');
      const paint = box.getContext('2d');
      return [0, 1, 2].map((at) =>
        [...paint.getImageData(box.width - 40, 20 + 54 * at + 26 + 5, 1, 1).data].join());
    """
    # No bar is there, and the rows have been drawn.
    drawn = f"const rows = (() => {{ {colors} }})(); return new Set(rows).size === 1 && rows;"
    idle = page.wait_for(f"{drawn.removesuffix('rows;')}!rows[0].endsWith(',0') && rows;")
    with contextlib.ExitStack() as stack:
        threads = []
        for name, model in models.items():
            stack.enter_context(model.held("execute"))
            send = threading.Thread(target=server.infer, args=(name, model.request()))
            send.start()
            threads.append(send)
        page.wait_for(f"return (() => {{ {colors} }})().every((one) => one !== '{idle[0]}')")
        label = page.wait_for(
            "const text = document.getElementById('bars').getAttribute('aria-label');"
            "return text.split('100').length === 4 && text;"
        )
        assert label.startswith("Timeline of executions of 3 instances: first_0_0 100")
    for send in threads:
        send.join(REQUEST_SECONDS_MAX)
    page.wait_for(
        "return [...document.querySelectorAll('.latency small')].some((one) =>"
        " /^p50 .+ · p99 .+/.test(one.textContent))"
    )
    page.wait_for("return document.querySelectorAll('#past path[d]').length === 6")
    assert page.run("return document.getElementById('gpus').hidden")
    page.wait_for("return document.getElementById('legend').textContent === 'instance_idle'")
    # With the keyboard, an execution shows its numbers.
    page.tab_to("it.id === 'timeline'")
    shown = "const tip = document.getElementById('tip'); return tip.hidden ? '' : tip.textContent"

    def is_told() -> bool:
        # The next frame contains the execution.
        page.press("ArrowLeft")
        return bool(page.run(shown))

    wait_until(is_told, REQUEST_SECONDS_MAX, "an execution is selected")
    tip = page.run(shown)
    assert tip.startswith("first_0_0\n") and "batch size 1 of 4" in tip
    assert "instance_idle: an instance was free" in tip
    page.press("ArrowDown")
    page.wait_for("return document.getElementById('tip').textContent.startsWith('second_0_0')")


def test_loading_trying_and_unloading_by_keys_alone(page: Browser, server: Server) -> None:
    page.tab_to(button("Load copies"))
    page.press("Enter")
    wait_for_state(page, "copies", "ready")
    page.wait_for(f"const it = document.activeElement; return {button('Unload copies')}")
    page.press("Shift", "Tab")
    page.wait_for(f"const it = document.activeElement; return {button('Try copies')}")
    page.press("Enter")
    page.wait_for("return document.getElementById('try').open")
    fields = page.run(
        "return [...document.querySelectorAll('#try-inputs input, #try-inputs textarea')]"
        ".map((one) => [one.labels[0].textContent, one.value])"
    )
    assert fields == [
        ["Shape (-1, 1)", "1, 1"],
        ["Data: one element in each line", "text"],
        ["Shape (-1, -1)", "1, 1"],
        ["Data: JSON, nested or flat", "[0.5]"],
    ]
    # The focus is on the first shape.
    page.press("Tab")
    page.press("Control", "a")
    page.type("<b>grüße</b>")
    page.press("Tab")
    page.press("Control", "a")
    page.type("1, 3")
    page.press("Tab")
    page.wait_for("return document.activeElement.value === '[0.5,0.5,0.5]'")
    page.tab_to("it.id === 'try-send'")
    page.press("Enter")
    result = "const one = document.getElementById('try-result'); return !one.hidden && "
    text = page.wait_for(result + "one.textContent")
    assert 'OUTPUT0 · BYTES [1, 1]\n["<b>grüße</b>"]' in text
    assert "OUTPUT1 · FP32 [1, 3]\n[0.5,0.5,0.5]" in text
    # The same request, sent as a shell command, has the same response.
    page.run("document.getElementById('try-curl').click()")
    command = page.wait_for(result + "/curl/.test(one.textContent) && one.textContent")
    if shutil.which("curl"):
        done = subprocess.run(["sh", "-c", command], check=True, capture_output=True)
        outputs = {one["name"]: one["data"] for one in json.loads(done.stdout)["outputs"]}
        assert outputs == {"OUTPUT0": ["<b>grüße</b>"], "OUTPUT1": [0.5, 0.5, 0.5]}
    # An error from the server is shown unchanged.
    page.run("document.querySelector('#try-inputs input').focus()")
    page.press("Control", "a")
    page.type("1, 2")
    page.tab_to("it.id === 'try-send'")
    page.press("Enter")
    text = page.wait_for(result + "one.className === 'bad' && one.textContent")
    assert "shape" in text
    page.press("Escape")
    page.wait_for(f"const it = document.activeElement; return {button('Try copies')}")
    page.press("Tab")
    page.press("Enter")
    page.wait_for("return document.getElementById('confirm').open")
    page.press("Enter")
    wait_for_state(page, "copies", "unavailable")
    page.wait_for(f"const it = document.activeElement; return {button('Load copies')}")
    assert "unloaded" in seen(page, "copies")


def test_models_in_memory_are_shown_over_time(
    session: Browser, start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    for name in ("one", "two"):
        write_identity(tmp_path / "models", name)
    flags = (FLAG, QUICK_END)
    budget = MODEL_BYTES + MODEL_BYTES // 2
    with serving(start_server, tmp_path / "models", *flags, budget=budget) as server:
        assert value_of(infer(server, "one")) == 7
        assert value_of(infer(server, "two")) == 7
        session.open(f"http://{server.http_url}/dashboard")
        session.wait_for(LIVE, "the page is live")
        bars = "return document.querySelectorAll('.track .resident').length"
        session.wait_for(f"return (() => {{ {bars} }})() === 2", "both models have a bar")
        rows = "return [...document.querySelectorAll('.stays li')].map((one) => one.textContent)"
        first, second = session.run(rows)
        # The first model has left, and the second one takes 64 MiB.
        assert first == "one–" and second.startswith("two64")
        told = session.run("return document.querySelector('.told').textContent")
        assert "one is being unloaded" in told and "makes room for 'two'" in told
        assert session.run("return document.querySelector('.used').textContent").startswith("64")
        session.open("about:blank")


def test_names_and_errors_are_text(page: Browser) -> None:
    title = page.run("return document.title")
    page.wait_for("return document.querySelectorAll('.name').length === 6")
    assert HOSTILE in page.run(SHOWN)
    page.tab_to(button("Load broken"))
    page.press("Enter")
    notice = "const text = document.getElementById('notice').textContent; return "
    text = page.wait_for(notice + "text.includes('was not loaded') && text")
    assert "<img src=x onerror=document.title=2>" in text
    # For a name that can't be part of a path, the buttons don't work.
    script = """
      return [...document.querySelectorAll('button')]
        .find((one) => one.ariaLabel === arguments[0]).disabled
    """
    assert page.run(script, f"Load {HOSTILE}")
    assert page.run("return document.images.length") == 0
    assert page.run("return document.title") == title


def test_nothing_leaves_the_machine_and_nothing_is_refused(page: Browser, server: Server) -> None:
    page.wait_for("return document.getElementById('server').textContent.startsWith('triton')")
    asked = page.requested()
    here = f"http://{server.http_url}/"
    assert {url for url in asked if not url.startswith((here, "data:", "about:"))} == set()
    assert f"{here}dashboard/events" in asked
    # For example, violations of the page's content policy.
    assert [entry["message"] for entry in page.log("browser")] == []


def test_an_inline_script_does_not_run(page: Browser) -> None:
    page.run(
        "const one = document.createElement('script'); one.textContent = 'window.ran = 1';"
        "document.body.append(one);"
    )
    assert page.run("return window.ran === undefined")
    assert "Content Security Policy" in page.log("browser")[0]["message"]


def test_it_is_dark_where_that_is_preferred(page: Browser) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    corner = (
        "const box = document.getElementById('bars'); const one = box.getContext('2d')"
        ".getImageData(box.width - 40, 51, 1, 1).data; return one[0] + one[1] + one[2]"
    )
    assert page.run(ground) == "rgb(245, 246, 249)"
    assert page.run(corner) > 400
    page.prefer(prefers_color_scheme="dark")
    try:
        assert page.run(ground) == "rgb(14, 19, 26)"
        page.wait_for(f"return (() => {{ {corner} }})() < 400", "the timeline is dark too")
    finally:
        page.prefer(prefers_color_scheme="light")


@pytest.mark.parametrize("width", [1024, 1600])
def test_a_reason_has_the_whole_row(page: Browser, width: int) -> None:
    page.resize(width, 900)
    try:
        share = """
          const row = document.querySelector('tr.model.idle');
          return row.querySelector('.status').offsetWidth / row.offsetWidth
        """
        page.wait_for(f"return (() => {{ {share} }})() > 0.6")
    finally:
        page.resize(1280, 900)


@pytest.mark.parametrize("width", [360, 860, 861, 1024, 1280, 1440, 1441, 1600])
def test_it_fits_the_width(page: Browser, width: int) -> None:
    page.resize(width, 900)
    try:
        page.run("document.querySelector('button[aria-expanded]:not([hidden])').click()")
        page.wait_for("return document.querySelector('.details') !== null")
        seen_width = page.run("return document.documentElement.scrollWidth")
        assert seen_width <= width
        wide = """
          return [...document.querySelectorAll('.figures div')].every((one) =>
            one.scrollWidth <= one.clientWidth + 1)
        """
        assert page.run(wide)
        # No part of the table is cut off, not even its last buttons.
        whole = """
          const wide = document.querySelector('.wide');
          const inside = wide.getBoundingClientRect();
          return wide.scrollWidth <= wide.clientWidth && [...wide.querySelectorAll('button')]
            .every((one) => one.getBoundingClientRect().right <= inside.right + 1)
        """
        assert page.run(whole)
    finally:
        page.resize(1280, 900)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible(page: Browser, scheme: str) -> None:
    python = environments.environment("axe", AXE)
    _, folder = environments.run(python, "-c", "import axe_core_python as a; print(a.__path__[0])")
    source = (pathlib.Path(folder.strip()) / "axe.min.js").read_text()
    page.prefer(prefers_color_scheme=scheme)
    try:
        page.run("document.querySelector('button[aria-expanded]:not([hidden])').click()")
        page.run(source)
        found = page.run_async("axe.run().then((all) => arguments[0](all.violations))")
        assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []
        page.tab_to(button("Try first"))
        page.press("Enter")
        page.wait_for("return document.getElementById('try').open")
        found = page.run_async("axe.run('#try').then((all) => arguments[0](all.violations))")
        assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []
    finally:
        page.prefer(prefers_color_scheme="light")


def test_it_connects_again(
    session: Browser, start_server: StartServer, models: dict[str, EventModel]
) -> None:
    repository, ports = models["first"].folder.parent, free_ports(3)
    with start_server(repository, FLAG, EXPLICIT, QUICK_END, "--load-model=first", ports=ports) as first:
        first.wait_until_live()
        session.open(f"http://{first.http_url}/dashboard")
        session.wait_for(LIVE, "the page is live")
        first.terminate()
        first.wait_for_exit()
    session.wait_for("return document.getElementById('connection').dataset.state === 'waiting'")
    with start_server(repository, FLAG, EXPLICIT, QUICK_END, "--load-model=first", ports=ports) as second:
        second.wait_until_ready()
        session.wait_for(LIVE, "the page is live again")
        wait_for_state(session, "first", "ready")
        session.open("about:blank")


def test_it_asks_for_the_key_of_a_restricted_server(
    session: Browser, start_server: StartServer, models: dict[str, EventModel]
) -> None:
    rule = "--http-restricted-api=statistics,model-repository,metadata:admin-key=secret"
    repository = models["first"].folder.parent
    with start_server(repository, FLAG, EXPLICIT, QUICK_END, "--load-model=first", rule) as server:
        server.wait_until_ready()
        session.open(f"http://{server.http_url}/dashboard")
        session.wait_for("return document.getElementById('key').open", "it asks for the key")
        label = session.run("return document.getElementById('key-value').labels[0].textContent")
        assert label == "Value of the header admin-key"
        session.type("wrong")
        session.press("Enter")
        session.wait_for(
            "return document.getElementById('key').open"
            " && document.getElementById('key-value').value === ''",
            "it asks again",
        )
        session.type("secret")
        session.press("Enter")
        session.wait_for(LIVE, "the page is live")
        wait_for_state(session, "first", "ready")
        # The index is restricted too, and the key gives access to it.
        session.wait_for("return document.querySelectorAll('.name').length === 6")
        session.open("about:blank")


def test_numbers_are_computed_from_counters(page: Browser) -> None:
    """Tests only the page's pure functions."""
    folder = pathlib.Path(__file__).parents[2] / "crates" / "dashboard" / "page"
    source = (folder / "format.js").read_text() + (folder / "model.js").read_text()
    script = """
      const stages = (count, ns) =>
        Object.fromEntries(['success', 'queue', 'infer'].map((name) => [name, [count, ns]]));
      const frame = (count, ended = [], current = null) => ({
        stages: stages(count, 2e6 * count), unexecuted: [['queue_full', count]],
        failures: { canceled: 1, backend: 2, other: 3 }, executions: count,
        inferences: 3 * count, instances: [{ name: 'a', current, ended, lost: 0 }],
      });
      const version = new Version('key');
      version.add(frame(10), 1e6);
      version.add(frame(30, [[1e6, 2e6, 1, 4, 1e6, 0, 1]]), 3e6);
      const { samples } = version;
      const found = {
        rate: rate(samples, requests), mean: meanStage(samples, 'queue'),
        batch: meanBatch(samples), busy: version.busy(), kinds: failed(samples[1].frame),
      };
      version.add(frame(5), 4e6);
      const timed = (latency) => ({ at: 0, frame: { latency } });
      const [none, some] = [timed([0, 0, 0]), timed([10, 10, 0])];
      found.quantiles = [0.5, 0.99].map((share) => quantile([none, some], [0.001, 0.002], share));
      found.noQuantile = Number.isNaN(quantile([some, some], [0.001, 0.002], 0.5));
      const sample = (requests) => ({ period_ms: 5000, samples_max: 3, memory: requests, models: [
        { name: 'm', version: '1', requests, errors: requests, p50_us: requests, p99_us: requests }]});
      const history = new History();
      history.replace(sample([5, 10]));
      history.append(sample([15]));
      history.append(sample([20]));
      found.history = [history.rates('requests'), history.memory];
      found.anew = [version.samples.length, rate(version.samples, requests)];
      found.numbers = [0, 0.456, 12.34, 456.7, 12345, 3e6].map(short);
      found.durations = [12, 1500, 2.5e6, NaN].map(duration);
      found.sizes = [512, 1536, 3 * 2 ** 30].map(bytes);
      found.shares = [0, 0.5, 1].map(percent);
      return found;
    """
    found = page.run(source + script)
    assert found["rate"] == 20 and found["mean"] == 2000 and found["batch"] == 3
    assert found["busy"] == 0.5
    assert found["kinds"] == {"refused": 30, "expired": 0, "cancelled": 1, "failed": 5}
    assert found["anew"] == [1, 0]
    assert found["quantiles"] == [1000, 1980] and found["noQuantile"]
    assert found["history"] == [[2, 3, 4], [10, 15, 20]]
    thin = "\u202f"
    assert found["numbers"] == ["0", "0.46", "12.3", "457", f"12.3{thin}k", f"3.0{thin}M"]
    assert found["durations"] == [f"12{thin}µs", f"1.5{thin}ms", f"2.5{thin}s", "–"]
    assert found["sizes"] == [f"512{thin}B", f"1.5{thin}KiB", f"3{thin}GiB"]
    assert found["shares"] == [f"0.0{thin}%", f"50{thin}%", f"100{thin}%"]


def test_a_row_shows_the_speed_of_generation(
    session: Browser, start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Tokens per second, and the time to the first token, of the model that generates text."""
    with open_door(start_server, tmp_path, FLAG) as door:
        session.open(f"http://{door.server.http_url}/dashboard")
        session.wait_for(LIVE, "the page is live")
        shown = "return [...document.querySelectorAll('tr.model')].map((row) => row.innerText)"
        session.wait_for(f"{shown}.length === 2", "the models have rows")
        assert not any("tokens/s" in text for text in session.run(shown))
        while not any("tokens/s, first after" in text for text in session.run(shown)):
            assert door.post(CHAT, chat("one two three", stream=True)).status == 200
        assert "tokens/s" in seen(session, "vllm_model")
        assert "tokens/s" not in seen(session, "python_model")
        session.open("about:blank")
