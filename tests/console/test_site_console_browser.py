"""The site's console in a real browser: by keyboard alone, on a telephone's screen, with a stranger's text in it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from browser import browser, complaints, screen, unspeakable
from curious_helpers import Curious
from engine_helpers import experiment

from holdfast.console.server import serve_console
from holdfast.core.failures import LOG as FAILURES

EVIL = "</p><script>document.title='got in'</script><img src=http://evil.example/x onerror=document.title='in'>"


def text_of(driver: Any, selector: str) -> str:
    return str(driver.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector))


def wait_for(driver: Any, selector: str, beginning: str) -> None:
    until = time.monotonic() + 20
    while not text_of(driver, selector).startswith(beginning):
        assert time.monotonic() < until, text_of(driver, selector)
        time.sleep(0.1)


def test_somebody_approves_by_keyboard(tmp_path: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    asking = Curious(tmp_path, experiment(names=(EVIL, "b", "c", "d")), "min_records = 0\napprovals = 1\n")
    asking.train()
    [memory] = [path.parent for path in asking.site.glob("*/asked.json")]
    (memory / FAILURES).write_text(EVIL)
    with serve_console(asking.site, tmp_path / "policy.toml") as address, browser(tmp_path / "profile") as driver:
        screen(driver, 390, 800)
        driver.get(address)
        assert driver.title == "(1) site-0 · Holdfast"
        assert driver.execute_script("return document.documentElement.scrollWidth") == 390  # nothing is cut off
        assert unspeakable(driver) == []

        def press(*keys: str) -> None:
            for key in keys:
                driver.switch_to.active_element.send_keys(key)

        for _ in range(40):  # by Tab alone to the name that approves
            press(Keys.TAB)
            if driver.execute_script("return document.activeElement.form?.getAttribute('action')") == "approve":
                break
        press("Dr. Meier", Keys.ENTER)
        wait_for(driver, "#said", "Dr. Meier has approved it. It may be played.")
        assert not asking.train().error
        wait_for(driver, "#news", "Something has changed. Show it")  # said, not forced upon who reads
        driver.find_element("css selector", "#news a").click()
        assert "approved by Dr. Meier" in text_of(driver, "#experiments ~ article")
        driver.find_element("css selector", "header input[name=by]").send_keys("Dr. Meier", Keys.ENTER)
        wait_for(driver, "h1", "Paused by Dr. Meier")
        assert asking.train(round=1).error == "paused"
        assert driver.title == "site-0 · Holdfast"
        asked = driver.execute_script("return performance.getEntriesByType('resource').map(one => one.name)")
        assert all(name.startswith(address) for name in asked)
        assert complaints(driver) == []
