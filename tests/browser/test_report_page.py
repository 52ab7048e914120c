"""The report in a real browser, without network: charts are drawn, legends hide, tables sort and filter."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from synthetic import HAZARD, launch, write_result

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("no Chromium here (Debian: apt-get install chromium)", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

ALLREDUCE = {
    "builtin": {4: 2e-6, 1024: 4e-6, 65536: 30e-6},
    "ring": {4: 4e-6, 1024: 4e-6, 65536: 15e-6},
    "tree": {4: 3e-6, 1024: 6e-6},
}
POINTS = "svg .mark-symbol.role-mark path"
BCAST = {"builtin": {64: 1e-6, 4096: 3e-6}, "binomial": {64: 1.5e-6, 4096: 2e-6}}


def write_report(folder: Path) -> Path:
    """A report of two collectives, of which one is measured on two and on four ranks; no figures."""
    from mpicoll.bench import frame, page, stats
    from mpicoll.bench.sections import Loaded, make_all

    wide = {"launches": [launch(number, ranks=4, hazards=[HAZARD]) for number in range(6)]}
    write_result(folder / "a", ALLREDUCE, launches=6, iterations=10)
    write_result(folder / "b", ALLREDUCE, launches=6, iterations=10, run=wide, ranks=4, ppn=4)
    write_result(folder / "c", BCAST, launches=6, iterations=10, collective="bcast", op=None)
    results = frame.load([folder])
    data = Loaded(results, stats.summarise(results.samples), (folder,))
    sections = make_all(data)
    page.write(folder / "report.html", data, sections, page.drawn(sections))
    return folder / "report.html"


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """The page, what it complained about, and the addresses that it asked for."""
    path = write_report(tmp_path_factory.mktemp("browser"))
    said: list[str] = []
    asked: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(20_000)
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.context.set_offline(True)
        page.goto(path.as_uri())
        yield page, said, asked
        browser.close()


def open_all(page) -> None:
    page.evaluate(
        "document.querySelectorAll('details:not(.vega-embed details)').forEach((one) => { one.open = true; })"
    )


def chart(page, name: str):
    """The first chart whose id ends like this, drawn."""
    place = page.locator(f".chart[id$='-{name}']").first
    place.scroll_into_view_if_needed()
    sync_api.expect(place).to_have_attribute("data-drawn", "yes")
    return place


def test_all_charts_are_drawn_without_complaint_or_network(opened, tmp_path) -> None:
    page, said, asked = opened
    open_all(page)
    charts = page.locator(".chart").all()
    assert len(charts) >= 3 * 5 + 1  # of three panels, and the map of winners
    for place in charts:
        place.scroll_into_view_if_needed()
        sync_api.expect(place).to_have_attribute("data-drawn", "yes")
        assert (
            place.locator("svg [role=graphics-symbol], svg .mark-rect path, svg .mark-line path").count() > 0
        )
    assert said == []
    assert [address for address in asked if not address.startswith(("file:", "data:", "blob:"))] == []
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 50_000


def test_the_legend_hides_algorithms_and_brings_them_back(opened) -> None:
    page, said, _ = opened
    open_all(page)
    place = chart(page, "latency")
    points = place.locator(
        "svg .mark-symbol[role=graphics-object] path:visible, svg g.mark-symbol.layer_2_marks path"
    )
    before = points.count()
    assert before == 8  # three contenders, one of them without the largest size
    place.locator("svg .role-legend-label text", has_text="ring").first.click()
    sync_api.expect(points).to_have_count(3)
    place.locator("svg .role-legend-label text", has_text="ring").first.click()
    sync_api.expect(points).to_have_count(before)
    assert said == []


def test_hovering_a_point_shows_its_values(opened) -> None:
    page, _, _ = opened
    open_all(page)
    place = chart(page, "latency")
    place.locator(POINTS).first.hover(force=True)
    tip = page.locator("#vg-tooltip-element")
    sync_api.expect(tip).to_contain_text("95 % interval")
    sync_api.expect(tip).to_contain_text("µs")


def test_the_size_of_a_distribution_is_chosen(opened) -> None:
    page, said, _ = opened
    open_all(page)
    place = chart(page, "distribution")
    line = place.locator("svg .mark-line path").first
    before = line.get_attribute("d")
    place.locator("select").select_option("64 KiB")
    sync_api.expect(line).not_to_have_attribute("d", before)
    assert said == []


def test_the_table_of_samples_is_filtered_and_sorted(opened) -> None:
    page, said, _ = opened
    grid = page.locator("#samples-grid")
    count = grid.locator(".count")
    sync_api.expect(count).to_contain_text(" of 1440 rows")
    grid.get_by_label("filter contender").fill("tree")
    sync_api.expect(count).to_contain_text("288 of 1440 rows")
    grid.get_by_label("filter warmup").fill("no")
    sync_api.expect(count).to_contain_text("240 of 1440 rows")
    grid.get_by_label("filter msg_bytes").fill("> 4")
    sync_api.expect(count).to_contain_text("120 of 1440 rows")
    grid.get_by_label("filter msg_bytes").fill("2..5")
    sync_api.expect(count).to_contain_text("120 of 1440 rows")

    names = grid.locator("thead tr").first.locator("th").all_inner_texts()
    at = next(index for index, name in enumerate(names) if name.startswith("seconds [µs]"))
    header = grid.locator("thead tr").first.locator("th").nth(at)
    for direction in ("ascending", "descending"):
        header.locator("button").click()
        sync_api.expect(header).to_have_attribute("aria-sort", direction)
        shown = [float(text) for text in grid.locator(f"tbody tr td:nth-child({at + 1})").all_inner_texts()]
        assert shown == sorted(shown, reverse=direction == "descending")
    grid.get_by_role("button", name="show more").click()
    assert grid.locator("tbody tr").count() == 120
    assert said == []


def test_a_link_into_a_folded_panel_opens_it(opened) -> None:
    page, _, _ = opened
    page.reload()
    panel = page.locator("details.part").nth(1)
    assert panel.get_attribute("open") is None
    page.evaluate("(id) => { location.hash = id; }", panel.get_attribute("id"))
    sync_api.expect(panel).to_have_attribute("open", "")
