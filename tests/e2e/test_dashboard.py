"""The dashboard in a real browser, in front of the whole daemon with the embedded model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2 as httpx
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from mlx_server.core.settings import Settings
from mlx_server.daemon.server_thread import ServerThread
from mlx_server.services.keys import add_key
from tests.e2e.browser import LOW_CONTRAST, WAIT_S, chromium, show, until
from tests.e2e.gated_executor import Gate, gated_engine

LONG = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 200, "min_tokens": 200}
NEED_NAMES = {
    "button",
    "link",
    "textbox",
    "spinbutton",
    "image",
    "img",
    "log",
    "region",
    "navigation",
    "table",
    "dialog",
}


@pytest.fixture(scope="module")
def gate() -> Gate:
    return Gate()


@pytest.fixture(scope="module")
def server(gate: Gate) -> Iterator[ServerThread]:
    settings = Settings(model="demo", max_num_seqs=8, kv_memory="32MB")
    with ServerThread(settings, gated_engine(gate)) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: webdriver.Chrome, server: ServerThread) -> Iterator[webdriver.Chrome]:
    """The dashboard with figures; afterwards, whatever the test did, nothing was complained of in the console."""
    show(browser, 1280, 900, still=True)
    browser.get(server.url + "/dashboard")
    browser.get_log("browser")  # what an earlier page left behind
    until(lambda: text(browser, "status-text") == "serving", "the first facts")
    yield browser
    assert browser.get_log("browser") == []


def text(page: webdriver.Chrome, element_id: str) -> str:
    return str(page.find_element(By.ID, element_id).text)


def value(page: webdriver.Chrome, script: str) -> Any:
    return page.execute_script(f"return {script}")  # type: ignore[no-untyped-call]


@contextmanager
def held_request(server: ServerThread, gate: Gate) -> Iterator[dict[str, Any]]:
    """A long request that stands still after some tokens; yields where its answer will be."""
    outcome: dict[str, Any] = {}

    def ask() -> None:
        with httpx.Client(timeout=WAIT_S, trust_env=False) as client:
            outcome["answer"] = client.post(f"{server.url}/v1/chat/completions", json={"model": "default", **LONG})

    gate.hold_after(12)
    asking = threading.Thread(target=ask)
    asking.start()
    try:
        gate.wait_held()
        yield outcome
    finally:
        gate.open()
        asking.join(WAIT_S)


def rows(page: webdriver.Chrome) -> int:
    return int(value(page, "document.querySelectorAll('#requests tr').length"))


def test_figures_appear_and_move_under_load(page: webdriver.Chrome, server: ServerThread) -> None:
    before = text(page, "ttft-note")
    with httpx.Client(base_url=server.url, timeout=WAIT_S, trust_env=False) as client:
        body = {"model": "default", **LONG, "max_tokens": 40, "min_tokens": 40}
        assert client.post("/v1/chat/completions", json=body).status_code == 200
        assert client.get("/v1/models/nobody").status_code == 404
    until(lambda: text(page, "ttft-note") != before, "a time to first token")
    until(lambda: "model_not_found" in text(page, "errors"), "the error in the list")
    assert "tokens since the start" in text(page, "itl-note")
    assert "demo" in text(page, "model")
    assert text(page, "t-level") == "normal"
    for chart in ("c-machine", "c-engine", "c-rate", "c-queue", "c-ttft", "c-itl", "c-blocks"):
        assert value(page, f"document.querySelectorAll('#{chart} svg path, #{chart} svg rect').length") > 0, chart
        assert value(page, f"document.querySelector('#{chart} svg').getAttribute('aria-label')"), chart


def test_a_live_request_is_listed_and_cancel_ends_it(page: webdriver.Chrome, server: ServerThread, gate: Gate) -> None:
    with held_request(server, gate) as outcome:
        until(lambda: rows(page) == 1, "the request in the list")
        assert "decoding" in text(page, "requests")
        page.find_element(By.CSS_SELECTOR, "#requests button").click()
        until(lambda: "answer" in outcome, "the end of the request")
        assert outcome["answer"].status_code == 400
        assert outcome["answer"].json()["error"]["code"] == "request_cancelled"
        until(lambda: rows(page) == 0, "an empty list")
        until(lambda: "cancelled" in text(page, "announce"), "the announcement")
        assert "request_cancelled" in text(page, "errors")


def test_the_playground_answers_and_stops(page: webdriver.Chrome, gate: Gate) -> None:
    page.find_element(By.ID, "chat-text").send_keys("What is the capital of France?", Keys.ENTER)
    until(lambda: "tokens" in text(page, "talk"), "the end of the answer")
    assert "Paris" in text(page, "talk")
    gate.hold_after(8)
    page.find_element(By.ID, "chat-text").send_keys("Tell me a story.", Keys.ENTER)
    gate.wait_held()
    page.find_element(By.ID, "chat-stop").click()
    until(lambda: "stopped" in text(page, "talk"), "the stop")
    gate.open()
    assert page.find_element(By.ID, "chat-send").is_enabled()
    until(lambda: rows(page) == 0, "an empty list")


def test_nothing_comes_from_elsewhere(page: webdriver.Chrome, server: ServerThread) -> None:
    names = value(page, "performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert any(name.endswith("/dashboard/app.js") for name in names)
    assert all(name.startswith(server.url) for name in names)


def test_every_control_is_reached_by_keyboard_and_shows_it(page: webdriver.Chrome) -> None:
    reached: list[str] = []
    page.execute_script("document.activeElement.blur(); window.scrollTo(0, 0)")  # type: ignore[no-untyped-call]
    for _ in range(40):
        page.switch_to.active_element.send_keys(Keys.TAB)
        about = value(
            page,
            "[document.activeElement.id || document.activeElement.className || document.activeElement.textContent, "
            "getComputedStyle(document.activeElement).outlineStyle, document.activeElement.tagName]",
        )
        if about[2] == "BODY":
            break
        reached.append(about[0])
        assert about[1] != "none", f"{about[0]} does not show that it has the focus"
    assert reached[0] == "skip"
    for control in ("Memory", "key-button", "theme", "As a table", "talk", "chat-text", "chat-send", "chat-max"):
        assert control in reached, (control, reached)


def test_the_theme_is_toggled_by_keyboard_and_kept(page: webdriver.Chrome) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = value(page, background)
    for _ in range(2):  # auto, light, dark
        page.find_element(By.ID, "theme").send_keys(Keys.ENTER)
    assert text(page, "theme") == "Theme: dark"
    dark = value(page, background)
    assert dark != light
    page.refresh()
    assert value(page, background) == dark
    page.find_element(By.ID, "theme").send_keys(Keys.ENTER)
    assert text(page, "theme") == "Theme: auto"
    show(page, 1280, 900, dark=True)
    assert value(page, background) == dark


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_names_roles_and_contrast(
    page: webdriver.Chrome, server: ServerThread, gate: Gate, width: int, dark: bool
) -> None:
    with held_request(server, gate):
        show(page, width, 900, dark=dark, still=True)
        until(lambda: rows(page) == 1, "the request in the list")
        contrast = value(page, f"(() => {{{LOW_CONTRAST}}})()")
        nodes = page.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        assert value(page, "document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
        assert value(page, "getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    assert contrast["seen"] > 80
    assert contrast["found"] == []
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    roles = [role for role, _ in named]
    for landmark in ("banner", "navigation", "main", "contentinfo", "log", "status"):
        assert roles.count(landmark) >= 1, landmark
    nameless = [role for role, name in named if role in NEED_NAMES and not name.strip()]
    assert nameless == []
    assert value(page, "document.documentElement.lang") == "en"
    assert value(page, "document.querySelectorAll('h1').length") == 1


def test_charts_have_a_table(page: webdriver.Chrome) -> None:
    for name in ("memory-table", "speed-table"):
        page.find_element(By.CSS_SELECTOR, f"#{name} summary").send_keys(Keys.ENTER)
        until(lambda name=name: value(page, f"document.querySelectorAll('#{name} tbody tr').length") > 0, name)
        assert value(page, f"document.querySelectorAll('#{name} thead th[scope=col]').length") >= 6


def test_where_keys_exist_the_page_asks_for_one(browser: webdriver.Chrome, tmp_path: Any) -> None:
    path = tmp_path / "keys.json"
    key = add_key(path, "watcher")[1]
    settings = Settings(model="demo", max_num_seqs=8, kv_memory="32MB", keys_file=path)
    with ServerThread(settings, gated_engine(Gate())) as server:
        show(browser, 1280, 900)
        browser.get(server.url + "/dashboard")
        until(lambda: value(browser, "document.getElementById('key-dialog').open"), "the question for a key")
        browser.find_element(By.ID, "key-input").send_keys("mlxs-wrong", Keys.ENTER)
        until(lambda: "not valid" in text(browser, "key-why"), "the refusal of a wrong key")
        browser.find_element(By.ID, "key-input").send_keys(key, Keys.ENTER)
        until(lambda: text(browser, "status-text") == "serving", "the facts")
        assert value(browser, "Object.values(localStorage).join().includes('mlxs-')") is False
        assert key in value(browser, "Object.values(sessionStorage).join()")
        browser.get("about:blank")
