"""A headless Chromium, and what tests ask of a page."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

WAIT_S = 10
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """Skips the test where there is no browser with its driver."""
    browser = next((path for name in _NAMES if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("needs chromium and chromedriver on the PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    page = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield page
    finally:
        page.quit()


def show(page: webdriver.Chrome, width: int, height: int, *, dark: bool = False, still: bool = False) -> None:
    """What the page is shown on, and to whom. still: somebody who wants no motion."""
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    features = [
        {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
        {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
    ]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def until(holds: Callable[[], Any], what: str) -> Any:
    """The first true value of `holds`; fails after `WAIT_S`, saying what did not come."""
    ends_s = time.monotonic() + WAIT_S
    while not (value := holds()):
        assert time.monotonic() < ends_s, f"waited {WAIT_S} s in vain for: {what}"
        time.sleep(0.05)
    return value


LOW_CONTRAST = """
const channels = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const over = (front, back) => {
  const alpha = front.length > 3 ? front[3] : 1;
  return [0, 1, 2].map((i) => front[i] * alpha + back[i] * (1 - alpha));
};
const light = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const behind = (element) => {
  const layers = [];
  for (let at = element; at; at = at.parentElement) layers.unshift(channels(getComputedStyle(at).backgroundColor));
  return layers.reduce((back, front) => over(front, back), [255, 255, 255]);
};
const found = [];
let seen = 0;
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  const text = walker.currentNode.textContent.trim();
  if (!text || element.closest(".sr, :disabled, script, noscript") || !element.getClientRects().length) continue;
  const style = getComputedStyle(element);
  const back = behind(element);
  const front = over(channels(element.closest("svg") ? style.fill : style.color), back);
  const [high, low] = [light(front), light(back)].sort((a, b) => b - a);
  const ratio = (high + 0.05) / (low + 0.05);
  const size = parseFloat(style.fontSize);
  seen++;
  const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
  if (ratio < (large ? 3 : 4.5)) found.push([text, ratio.toFixed(2)]);
}
return {seen, found};
"""
"""Texts whose contrast with what is behind them is below WCAG 2.2 AA: 4.5, or 3 for large ones."""
