"""Sites and the final model's figures in a real browser, on a wide screen and on a telephone's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import browser, complaints, screen
from kind_tasks import wanted

import holdfast
from holdfast.report import save_report

DRAWN = {  # task -> figures, and how many shapes there are at least
    "classes": (["ROC curve", "Calibration"], "#curves circle", 2),
    "regression": (["Residuals"], "#curves rect", 20),
    "hazards": (["Survival by predicted risk (Kaplan-Meier)"], "#curves path", 3),
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.mark.parametrize("task", DRAWN)
def test_sites_and_figures_are_drawn(task: str, driver: Any, tmp_path: Path) -> None:
    away = {"name": "intervals", "away": [[1, 1, 9]]}
    holdfast.run(wanted(task, rounds=2, lr=0.1, scenario=away), tmp_path / "run")
    save_report([tmp_path / "run"], tmp_path / "page.html")
    titles, shapes, least = DRAWN[task]
    for width in (1280, 390):
        screen(driver, width=width)
        driver.get(f"file://{tmp_path / 'page.html'}")
        found = [one.text for one in driver.find_elements("css selector", "#curves h3")]
        assert found == titles
        assert len(driver.find_elements("css selector", shapes)) >= least
        names = [one.text for one in driver.find_elements("css selector", "#sites tbody th")]
        assert names == ["overall", "those who are away (1)", "client 0", "client 1, away", "client 2"]
        assert "On the data of those who are away" in driver.find_element("css selector", "h1").text
        wide = driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0  # nothing sticks out of the page
        assert complaints(driver) == []
