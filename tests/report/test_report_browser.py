"""The page in a real browser: it loads without complaint, its plots are drawn, its switches switch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import browser, complaints, inked, need_browser, screen, unspeakable
from report_helpers import busy_run, judged, leaving, make_run, moderated, record

from holdfast.report import save_report
from holdfast.report.figures import COLOURS
from holdfast.report.watch import serve
from holdfast.report.words import colour_places
from holdfast.runs.experiment import from_table
from holdfast.runs.presence import PRESENCE, Presence


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods x two scenarios x two seeds; FedDig keeps what FedAvg loses."""
    folder = tmp_path_factory.mktemp("compared")
    plan = from_table({"clients": 2, "rounds": 12})
    for seed in (0, 1):
        for absence, after in (("feddig", 0.8), ("none", 0.4)):
            keys = {"absence": absence, "seed": seed}
            gone = leaving(plan, 0.82 + 0.02 * seed, after, absence == "feddig")
            make_run(folder / f"gone-{absence}-{seed}", gone, scenario="sequential", **keys)
            make_run(folder / f"there-{absence}-{seed}", [judged(t, 0.85) for t in range(1, 13)], **keys)
    save_report([folder], folder / "page.html")
    return folder / "page.html"


def open_page(driver: Any, page: Path, **size: Any) -> None:
    screen(driver, **size)
    driver.get(f"file://{page}")


def texts(driver: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map(one => one.textContent)"
    return [str(text) for text in driver.execute_script(script, selector)]


def click(driver: Any, selector: str) -> None:
    driver.execute_script("document.querySelector(arguments[0]).click()", selector)


def count(driver: Any, selector: str) -> int:
    return len(driver.find_elements("css selector", selector))


def choose(driver: Any, selector: str, value: str) -> None:
    script = (
        "const s = document.querySelector(arguments[0]); s.value = arguments[1]; s.dispatchEvent(new Event('change'))"
    )
    driver.execute_script(script, selector, value)


def test_the_page_draws_its_plots_without_complaint(driver: Any, compared: Path) -> None:
    open_page(driver, compared)
    assert texts(driver, "h1") == [
        "FedAvg + FedDig kept 80.0\u00a0% when all 2 clients left; FedAvg fell to 40.0\u00a0%."
    ]
    assert count(driver, "#metric-plot path.line") == 2
    assert count(driver, "#metric-plot path.band") == 2
    assert count(driver, "#seconds-plot path.bars") == 3  # stand-ins and trust took no time
    assert inked(driver, "#presence canvas") >= 3  # ground, there, digest
    for heat in ("clients", "classes", "weights"):
        assert inked(driver, f"#{heat}-heat canvas") >= 3
    assert complaints(driver) == []


def test_without_a_browser_tests_are_skipped_but_not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", "")
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium chromium-driver"):
        need_browser()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no program chromium"):
        need_browser()


def test_nothing_is_fetched(driver: Any, compared: Path) -> None:
    open_page(driver, compared)
    assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_switches_of_methods_scenarios_and_seeds(driver: Any, compared: Path) -> None:
    open_page(driver, compared)
    click(driver, "#method-1")
    assert count(driver, "#metric-plot path.line") == 1
    assert driver.find_element("css selector", "#method-1").get_attribute("aria-pressed") == "false"
    click(driver, "#method-0")  # the last one stays
    assert count(driver, "#metric-plot path.line") == 1
    click(driver, "#method-1")
    choose(driver, "#seed", "1")
    assert (count(driver, "#metric-plot path.line"), count(driver, "#metric-plot path.band")) == (2, 0)
    assert "FedAvg + FedDig, seed 1" in texts(driver, "#metric .say")[0]
    choose(driver, "#focus", "gone-none-1")
    assert "FedAvg, seed 1" in texts(driver, "#metric .say")[0]
    assert "away 50 %" in driver.find_element("css selector", "#presence").get_attribute("aria-label")
    scenarios = texts(driver, "[id^=scenario-]")
    click(driver, f"#scenario-{scenarios.index('none')}")
    assert "there 100 %" in driver.find_element("css selector", "#presence").get_attribute("aria-label")
    assert complaints(driver) == []


def test_dragging_zooms_and_double_click_shows_all(driver: Any, compared: Path) -> None:
    from selenium.webdriver import ActionChains

    open_page(driver, compared)
    plot = driver.find_element("css selector", "#metric-plot")
    ActionChains(driver, duration=20).move_to_element_with_offset(plot, -100, 0).click_and_hold().move_by_offset(
        150, 0
    ).release().perform()
    low, high = driver.execute_script("return view.zoom")
    assert 1 < low < high < 12
    assert texts(driver, "#whole")[0].startswith(f"Rounds {low}–{high}")
    ActionChains(driver).double_click(driver.find_element("css selector", "#metric-plot")).perform()
    assert driver.execute_script("return view.zoom") is None


def test_hovering_and_walking_tell_the_values(driver: Any, compared: Path) -> None:
    from selenium.webdriver import ActionChains, Keys

    open_page(driver, compared)
    ActionChains(driver, duration=20).move_to_element(driver.find_element("css selector", "#presence")).perform()
    assert "there" in texts(driver, "#tip")[0] or "stands in" in texts(driver, "#tip")[0]
    plot = driver.find_element("css selector", "#metric-plot")
    plot.send_keys(Keys.HOME, Keys.ARROW_RIGHT)
    expected = "Round 2\nFedAvg + FedDig: 83.0\u00a0% ± 1.4\nFedAvg: 83.0\u00a0% ± 1.4"  # seeds at 82 and 84
    assert texts(driver, "#spoken") == [expected] == texts(driver, "#tip")
    driver.find_element("css selector", "#metric-plot").send_keys("+")
    assert driver.execute_script("return view.zoom") is not None
    driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert driver.execute_script("return view.zoom") is None


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_no_text_is_cut_and_nothing_overflows(driver: Any, compared: Path, width: int, dark: bool) -> None:
    open_page(driver, compared, width=width, dark=dark)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    cut = driver.execute_script(
        """return [...document.querySelectorAll(".plot svg text")].filter(text => {
             const a = text.getBoundingClientRect(), b = text.closest(".plot").getBoundingClientRect();
             const out = [b.left - a.left, a.right - b.right, b.top - a.top, a.bottom - b.bottom];
             return a.width && Math.max(...out) > 2;
           }).map(text => text.textContent)"""
    )
    assert cut == []


@pytest.mark.parametrize("dark", [False, True])
def test_words_stand_out_from_their_ground(driver: Any, compared: Path, dark: bool) -> None:
    """WCAG's contrast of at least 4.5 for text and 3 for lines."""
    open_page(driver, compared, dark=dark)
    contrasts = driver.execute_script(
        """const light = colour => { const pen = document.createElement("canvas").getContext("2d");
             pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
             const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => v / 255)
               .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
             return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
           const contrast = name => {
             const [x, y] = [light(css(name)), light(css("--card"))].sort((p, q) => q - p);
             return (x + 0.05) / (y + 0.05); };
           const words = ["--ink", "--quiet", "--refused", "--accent"].map(name => [name, contrast(name), 4.5]);
           return [...words, ...[0, 1, 2, 3, 4, 5, 6, 7].map(i => [`--c${i}`, contrast(`--c${i}`), 3])];"""
    )
    assert [name for name, contrast, least in contrasts if contrast < least] == []


def test_texts_of_a_run_never_become_code(driver: Any, tmp_path: Path) -> None:
    evil = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    run = make_run(tmp_path / "run", [judged(t, 0.5, notes=[evil], suspects={1: evil}) for t in range(1, 4)])
    save_report([run], tmp_path / "page.html")
    open_page(driver, tmp_path / "page.html")
    assert evil in texts(driver, "#notes td.wide")
    assert driver.title != "owned"
    assert complaints(driver) == []


def test_a_run_without_any_test_or_round_is_shown(driver: Any, tmp_path: Path) -> None:
    make_run(tmp_path / "untested", [record(t) for t in range(1, 3)], finished=False)
    make_run(tmp_path / "empty", [], finished=False, seed=1)
    save_report([tmp_path], tmp_path / "page.html")
    open_page(driver, tmp_path / "page.html")
    assert texts(driver, "#status") == ["not finished"]
    assert complaints(driver) == []


def test_keyboard_reaches_every_plot_and_switch(driver: Any, compared: Path) -> None:
    open_page(driver, compared)
    unreachable = driver.execute_script(
        "return [...document.querySelectorAll('.plot, button, select, summary')].filter(one => one.tabIndex < 0).length"
    )
    assert unreachable == 0
    assert unspeakable(driver) == []
    click(driver, "#facts summary")
    time.sleep(0.1)
    assert count(driver, "#facts details:first-of-type tbody tr") == 12


def test_large_runs_stay_small_pages(driver: Any, tmp_path: Path) -> None:
    """One of twenty such runs in a twentieth of the 8 MB that they may take; its 19,200 scores are one canvas."""
    page = tmp_path / "page.html"
    save_report([busy_run(tmp_path / "run", rounds=300, clients=64, seed=0, number=0)], page)
    assert page.stat().st_size < 8e6 / 20
    open_page(driver, page)
    assert count(driver, "*") < 300 * 64 / 2
    assert inked(driver, "#scores-heat canvas") > 50
    assert inked(driver, "#credibility-heat canvas") > 50
    assert count(driver, "#trust table") >= 1
    assert complaints(driver) == []


def test_the_plots_label_is_what_the_headline_says(driver: Any, tmp_path: Path) -> None:
    """The mean of the last three tests, 50.2, where the last one alone would be 51.5."""
    values = [0.2, 0.4, 0.495, 0.496, 0.515]
    make_run(tmp_path / "one", [judged(t, value) for t, value in enumerate(values, 1)], rounds=5)
    save_report([tmp_path / "one"], tmp_path / "page.html")
    open_page(driver, tmp_path / "page.html")
    assert "FedAvg reached 50.2\u00a0%" in texts(driver, "h1")[0]
    assert "50.2 %" in texts(driver, "#metric-plot svg text.strong")[0]
    assert "mean of the last tenth of the tests, at least three" in texts(driver, "#metric .say")[0]


def test_a_table_that_is_cut_says_so(driver: Any, compared: Path) -> None:
    open_page(driver, compared)
    assert count(driver, ".more") == 0
    open_page(driver, compared, width=390, height=844)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
    cue = driver.find_element("css selector", "#summary .cue")
    assert cue.is_displayed()
    driver.execute_script("document.querySelector('#summary .scroll').scrollLeft = 9999")
    wait = time.monotonic() + 5
    while cue.is_displayed() and time.monotonic() < wait:
        time.sleep(0.05)
    assert not cue.is_displayed()


def test_a_method_has_one_colour_in_page_and_figure(driver: Any, compared: Path, tmp_path: Path) -> None:
    """The lines of the page, light mode, are in the colours in which figures are drawn, whatever the order of runs."""
    folders = sorted(path.parent for path in compared.parent.glob("*/experiment.json"))
    for order in (folders, folders[::-1]):
        save_report(order, tmp_path / "page.html")
        open_page(driver, tmp_path / "page.html")
        script = "return methodsShown().map(label => [label, css(colourOf(label).colour.slice(4, -1))])"
        found = dict(driver.execute_script(script))
        places = colour_places(list(found))
        assert found == {name: COLOURS[place] for name, place in places.items()}
        assert places["FedAvg"] == 0


def test_the_moderator_sees_where_each_site_stands(driver: Any, tmp_path: Path) -> None:
    folder = moderated(tmp_path)
    Presence(folder / PRESENCE).saw({"north": True, "west": False}, [])
    Presence(folder / PRESENCE).waits(["west"], [])
    with serve(folder, open_browser=False) as address:
        driver.get(address)
        until = time.monotonic() + 20
        while not driver.find_elements("css selector", "#now td"):
            assert time.monotonic() < until
            time.sleep(0.1)
        told = driver.find_element("css selector", "#now").text
        for words in (
            "1 of 4 sites are connected. Approval is pending at west.",
            "paused by its people",
            "<b>east</b>",
        ):
            assert words in told
        assert "suspected 2 times, last in round 3: its update is too long" in told
        assert len(driver.find_elements("css selector", "#now b")) == 0
        assert complaints(driver) == []
