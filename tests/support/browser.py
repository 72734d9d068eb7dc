"""A real browser for the tests: Debian's Chromium, headless, through Selenium; each with an empty profile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


def need_browser() -> None:
    """Skip where there is no browser, with what to do; in CI that is a failure."""
    missing = [f"program {name}" for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    try:
        import selenium  # noqa: F401
    except ImportError:
        missing.append("Python package selenium")
    if not missing:
        return
    text = f"no {' and no '.join(missing)}: apt-get install chromium chromium-driver; pip install selenium"
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(text)
    pytest.skip(text)


@contextmanager
def browser(profile: Path) -> Iterator[Any]:
    need_browser()
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    try:
        screen(driver)
        yield driver
    finally:
        driver.quit()


def screen(driver: Any, width: int = 1280, height: int = 900, dark: bool = False) -> None:
    """The size of the screen, and whether the user likes it dark."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})


def complaints(driver: Any) -> list[str]:
    """What the page wrote to the console since the last look."""
    return [entry["message"] for entry in driver.get_log("browser")]


def inked(driver: Any, canvas: str) -> int:
    """How many different colours a canvas shows: an empty one shows one."""
    script = """
      const canvas = document.querySelector(arguments[0]), size = [canvas.width, canvas.height];
      const points = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, ...size).data.buffer);
      return new Set(points).size;
    """
    return int(driver.execute_script(script, canvas))


ROLES = ("button", "link", "textbox", "checkbox", "combobox", "searchbox", "image", "figure", "region")


def spoken(driver: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """What a screen reader is told: role, name and properties of each node of the browser's own accessibility tree."""
    driver.execute_cdp_cmd("Accessibility.enable", {})
    nodes = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    return [
        (
            node["role"]["value"].lower(),
            str(node.get("name", {}).get("value", "")).strip(),
            {one["name"]: one["value"].get("value") for one in node.get("properties", [])},
        )
        for node in nodes
        if not node.get("ignored")
    ]


def unspeakable(driver: Any) -> list[str]:
    """What a screen reader could make nothing of: things without a name, headings that skip a level, no landmark."""
    told = spoken(driver)
    found = [role for role, name, _ in told if role in ROLES and not name]
    levels = sorted({int(more["level"]) for role, _, more in told if role == "heading"})
    found += [] if levels == list(range(1, len(levels) + 1)) else [f"headings {levels}"]
    found += [] if sum(role == "main" for role, _, _ in told) == 1 else ["no main part"]
    return found + ([] if any(more.get("live") == "polite" for _, _, more in told) else ["no live region"])
