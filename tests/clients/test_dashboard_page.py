"""The page of the dashboard in a browser: what it shows, and what can be done with keys alone."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import browser as browsers
import pytest
from browser import Browser
from conftest import StartServer
from events import EventModel
from server import Server, free_ports

pytestmark = [
    pytest.mark.galatea_only,  # Triton has no such page.
    pytest.mark.skipif(
        not browsers.is_installed(), reason="needs Debian's packages chromium and chromium-driver"
    ),
]

FLAG = "--allow-dashboard=true"
EXPLICIT = "--model-control-mode=explicit"
NAMES = ("first", "second", "third")
BATCHED = "instance_group { count: 1 kind: KIND_CPU } dynamic_batching { }"
#: A name that would be an image with a script, if it became HTML.
HOSTILE = "<img src=x onerror=document.title=1>"
LIVE = "return document.getElementById('connection').dataset.state === 'live'"
SHOWN = "return [...document.querySelectorAll('.name')].map((one) => one.textContent)"
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
    """Three models whose executions can be held, and two that are not loaded."""
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
    with start_server(repository, FLAG, EXPLICIT, *named) as running:
        yield running.wait_until_ready()


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The browser of all tests."""
    with browsers.browser(tmp_path_factory.mktemp("browser")) as one:
        one.resize(1280, 900)
        yield one


@pytest.fixture
def page(session: Browser, server: Server) -> Browser:
    """The browser with the page, which shows the first three models."""
    return opened(session, server)


def opened(session: Browser, server: Server) -> Browser:
    """Opens the page, and waits until it is live."""
    session.open("about:blank")
    session.log("browser"), session.requested()
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
    """Waits until a model's row shows this."""
    script = f"""
      return [...document.querySelectorAll('tr.model')].some((one) =>
        one.querySelector('.name').textContent === {name!r}
        && one.querySelector('.state').textContent === {state!r});
    """
    page.wait_for(script, f"{name} is {state}")


def button(label: str) -> str:
    """What is true of the focused element if it is this button."""
    return f"it.getAttribute('aria-label') === {label!r}"


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
    # The focus is in the first shape.
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
    # An error of the server is shown as it is.
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


def test_names_and_errors_are_text(page: Browser) -> None:
    title = page.run("return document.title")
    page.wait_for("return document.querySelectorAll('.name').length === 6")
    assert HOSTILE in page.run(SHOWN)
    page.tab_to(button("Load broken"))
    page.press("Enter")
    notice = "const text = document.getElementById('notice').textContent; return "
    text = page.wait_for(notice + "text.includes('was not loaded') && text")
    assert "<img src=x onerror=document.title=2>" in text
    # A name that no path can have has no buttons that work.
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
    # Such as what the policy of the page does not allow.
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


@pytest.mark.parametrize("width", [360, 860, 1600])
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
    finally:
        page.resize(1280, 900)


def test_it_connects_again(
    session: Browser, start_server: StartServer, models: dict[str, EventModel]
) -> None:
    repository, ports = models["first"].folder.parent, free_ports(3)
    with start_server(repository, FLAG, EXPLICIT, "--load-model=first", ports=ports) as first:
        first.wait_until_live()
        session.open(f"http://{first.http_url}/dashboard")
        session.wait_for(LIVE, "the page is live")
        first.terminate()
        first.wait_for_exit()
    session.wait_for("return document.getElementById('connection').dataset.state === 'waiting'")
    with start_server(repository, FLAG, EXPLICIT, "--load-model=first", ports=ports) as second:
        second.wait_until_ready()
        session.wait_for(LIVE, "the page is live again")
        wait_for_state(session, "first", "ready")
        session.open("about:blank")
