"""The report page and the live view in a browser."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from playwright.sync_api import Browser, Dialog, Page, Playwright, expect, sync_playwright

from support.made_runs import (
    FAULTY_ONES,
    HOSTILE,
    HOSTILE_NAME,
    JOINED,
    NAMES,
    append,
    big_page,
    made,
    named,
    run_of,
    watched,
    weighted,
    write,
)
from zeno.records.record import Record
from zeno.report.page.html import build
from zeno.report.run_view import read_run
from zeno.workers.reply import ErrorKind, ReplyError

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
GOOD_ONES = [worker for worker in range(12) if worker not in (*FAULTY_ONES, 1, 9)]

# Mean lightness (0 to 255) of each row of the map, over the middle of its height.
LIGHTNESS = """() => {
  const canvas = document.querySelector("#map canvas"), over = document.querySelector("#map .u-over");
  const a = canvas.getBoundingClientRect(), b = over.getBoundingClientRect(), ratio = canvas.width / a.width;
  const count = Number(document.querySelector("#map").dataset.rows);
  const tall = b.height / count, sheet = new OffscreenCanvas(canvas.width, canvas.height);
  const context = sheet.getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, 0, 0);
  return Array.from({ length: count }, (_, r) => {
    const y = (b.top - a.top + (r + 0.25) * tall) * ratio;
    const box = [(b.left - a.left) * ratio, y, b.width * ratio, Math.max(1, (tall / 2) * ratio)].map(Math.round);
    const { data } = context.getImageData(...box);
    let sum = 0;
    for (let i = 0; i < data.length; i += 4) sum += 0.2126 * data[i] + 0.7152 * data[i + 1] + 0.0722 * data[i + 2];
    return sum / (data.length / 4);
  });
}"""

# The text with the least contrast to what is behind it.
CONTRAST = """() => {
  const sheet = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const parts = (colour) => {
    sheet.clearRect(0, 0, 1, 1);
    sheet.fillStyle = colour;
    sheet.fillRect(0, 0, 1, 1);
    return [...sheet.getImageData(0, 0, 1, 1).data];
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const found = parts(getComputedStyle(e).backgroundColor);
      if (found[3] === 255) return found;
    }
    return [255, 255, 255, 255];
  };
  let worst = [99, ""], count = 0;
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].filter((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own.length || !element.checkVisibility() || element.closest("svg, script, noscript")) continue;
    const a = light(parts(getComputedStyle(element).color).slice(0, 3)), b = light(behind(element).slice(0, 3));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    count++;
    if (ratio < worst[0]) worst = [ratio, own[0].textContent.slice(0, 60)];
  }
  return [...worst, count];
}"""

FITS = "() => document.scrollingElement.scrollWidth <= document.scrollingElement.clientWidth"


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as found:
        yield found


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium found: apt-get install chromium to run the browser tests")
    found = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
    yield found
    found.close()


class Window:
    """An open page, and the errors in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self._heard: dict[Any, Callable[[Any], None]] = {
            "console": lambda message: self.wrong.append(message.text) if message.type != "log" else None,
            "pageerror": lambda error: self.wrong.append(str(error)),
            "dialog": self._dialog,
            "request": lambda request: self.asked.append(request.url),
        }
        for event, handler in self._heard.items():
            page.on(event, handler)

    def _dialog(self, dialog: Dialog) -> None:
        self.wrong.append("a dialog")
        dialog.dismiss()

    def leave(self) -> None:
        self.page.evaluate("localStorage.clear()")
        self.page.goto("about:blank")
        for event, handler in self._heard.items():
            self.page.remove_listener(event, handler)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def tile(self, name: str) -> str:
        return self.page.locator(f'[data-tile="{name}"] dd').inner_text()

    def wait_for_steps(self, text: str) -> None:
        expect(self.page.locator('[data-tile="steps"] dd')).to_have_text(text, timeout=10_000)

    def cell(self, row: int, step: float, rows: int = 12, steps: int = 80) -> tuple[float, float]:
        """Where a cell of the map is, when all steps are shown."""
        self.page.locator("#map").scroll_into_view_if_needed()
        box = self.page.locator("#map .u-over").bounding_box()
        assert box is not None
        return box["x"] + (step + 0.5) / steps * box["width"], box["y"] + (row + 0.5) / rows * box["height"]

    def lightness(self) -> list[float]:
        return list(map(float, self.page.evaluate(LIGHTNESS)))

    def axis(self, chart: str) -> str:
        """What a chart shows, as a picture of its pixels."""
        return str(self.page.evaluate(f"() => document.querySelector('#{chart} canvas').toDataURL()"))


Open = Callable[..., Any]


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Page:
    """One for all tests, because opening one takes longer than most tests."""
    tab = browser.new_page()
    tab.set_default_timeout(10_000)
    return tab


@pytest.fixture
def window(tab: Page, tmp_path: Path) -> Open:
    """Opens a page, and asserts at the end that it had no errors."""

    @contextmanager
    def shown(html_or_url: str, scheme: Literal["light", "dark"] = "light", width: int = 1180) -> Iterator[Window]:
        url = html_or_url
        if not url.startswith("http"):
            (tmp_path / "report.html").write_text(html_or_url, encoding="utf-8")
            url = (tmp_path / "report.html").as_uri()
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=scheme, media="screen")
        found = Window(tab)
        try:
            tab.goto(url)
            tab.evaluate("window.zenoReady")
            yield found
            assert found.wrong == []
        finally:
            found.leave()

    return shown


@pytest.fixture(scope="module")
def report() -> str:
    return build([run_of(made(), split="iid")])


def test_the_page_opens_from_disk_and_makes_no_requests(window: Open, report: str) -> None:
    with window(report) as shown:
        assert shown.tile("steps") == "80"
        assert shown.tile("test accuracy") == "79.0 %"
        assert shown.tile("suspects") == "3 of 12"
        assert shown.text("#verdict").endswith("3 of 12 workers are suspect: 2, 5 and 7.")
        assert "iid" in shown.text("#settings")
        assert "nobody answered (1 step: 30)" in shown.text("#skipped")
        assert all(url.startswith(("file:", "data:", "blob:")) for url in shown.asked)
        assert len(shown.asked) >= 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_map_shows_the_faulty_workers_darker(window: Open, report: str, scheme: str) -> None:
    with window(report, scheme=scheme) as shown:
        ground = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(251, 250, 247)") == (scheme == "light")
        rows = shown.lightness()
        assert max(rows[w] for w in FAULTY_ONES) + 60 < min(rows[w] for w in GOOD_ONES)


def test_hovering_shows_worker_step_score_and_rank(window: Open, report: str) -> None:
    records = made()
    with window(report) as shown:
        for worker, step in ((0, 10), (5, 77), (11, 33), (7, 5)):
            shown.page.mouse.move(*shown.cell(worker, step))
            scores = records[step].scores
            assert scores is not None
            value = scores[worker]
            assert value is not None
            text = shown.text("#readout")
            place = 1 + sum(other is not None and other > value for other in scores)
            state = "dropped" if worker in FAULTY_ONES else "kept"
            known = "Made faulty at this step." if worker in FAULTY_ONES else "Not made faulty at this step."
            assert _score(text) == pytest.approx(value, rel=6e-4)
            text = text.replace(f"{_score(text):g}", "?")
            assert text == f"Worker {worker}, step {step}: {state}, score ?, rank {place} of 12. {known}"
        shown.page.mouse.move(*shown.cell(9, 42))
        assert "Worker 9, step 42: no usable reply (raised ValueError: no)." in shown.text("#readout")
        shown.page.mouse.move(*shown.cell(1, 55))
        assert "step 55: not asked" in shown.text("#readout")
        shown.page.mouse.move(*shown.cell(0, 30))
        assert "step 30: no update at this step (nobody answered), score" in shown.text("#readout")
        shown.page.mouse.move(*shown.cell(0, 2))
        assert "step 2: no worker was kept at this step, score" in shown.text("#readout")
        assert shown.text("#accuracy-value") == "9.0 % after step 9"  # the cursor of the others follows


def _score(text: str) -> float:
    return float(re.findall(r"score (-?[\d.]+\d)", text)[0])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_workers_with_a_small_weight_are_darker_and_the_server_has_a_row(window: Open, scheme: str) -> None:
    with window(build([run_of(weighted())]), scheme=scheme) as shown:
        rows = shown.lightness()
        assert len(rows) == 13
        assert rows[0] > rows[3] + 20 > rows[6] + 40 > rows[11] + 60
        assert rows[11] > max(rows[w] for w in FAULTY_ONES)
        legend = shown.text("#map-legend")
        assert "kept; darker: a smaller share of the update, compared with the largest at that step" in legend
        assert "server: none, half or all of the update is its own gradient" in legend
        assert "subtracted" in legend
        assert shown.tile("server's share") == "25.0 %"


def test_hovering_shows_weights_and_the_share_of_the_server(window: Open) -> None:
    with window(build([run_of(weighted())])) as shown:
        for row, step, text in (
            (0, 10, "Worker 0, step 10: kept, weight 0.2, score "),
            (6, 10, "Worker 6, step 10: kept, weight 0.1, score "),
            (4, 10, "Worker 4, step 10: kept, weight -0.1 (subtracted), score "),
            (2, 10, "Worker 2, step 10: dropped, score "),
            (12, 10, "Server, step 10: its own gradient has a share of 0.25 in the update."),
            (12, 30, "Server, step 30: no update at this step (nobody answered)."),
        ):
            shown.page.mouse.move(*shown.cell(row, step, rows=13))
            assert shown.text("#readout").startswith(text)
            assert shown.text("#readout").endswith("The server's own share is 0.25.") == (row < 12)
        shown.page.mouse.click(*shown.cell(12, 10, rows=13))
        assert not shown.page.is_visible("#worker-part"), "the server is not a worker"
        shown.page.select_option("#show", "suspects")
        assert len(shown.lightness()) == 3


def test_an_asynchronous_run_shows_staleness(window: Open) -> None:
    arrived = [
        replace(record, arrivals=[[0, record.step], [3, max(0, record.step - 7)]], quarantined=[1]) for record in made()
    ]
    with window(build([run_of(arrived)])) as shown:
        shown.page.mouse.move(*shown.cell(3, 40))
        assert "staleness 7" in shown.text("#readout")
        shown.page.mouse.move(*shown.cell(0, 40))
        assert "staleness 0" in shown.text("#readout")
        shown.page.mouse.move(*shown.cell(1, 40))
        assert "step 40: did not arrive" in shown.text("#readout")
        assert "the mean staleness of a worker's arrivals" in shown.text("#map-legend")


def test_equal_weights_look_as_records_without_weights(window: Open, report: str) -> None:
    equal = [
        record if record.kept is None else replace(record, weights=[kept / 7 for kept in record.kept])
        for record in made()
    ]
    with window(report) as shown:
        before, legend = shown.axis("map"), shown.text("#map-legend")
    with window(build([run_of(equal)])) as shown:
        assert (shown.axis("map"), shown.text("#map-legend")) == (before, legend)
        shown.page.mouse.move(*shown.cell(0, 10))
        assert "kept, weight 0.14, score" in shown.text("#readout")
        assert "server" not in shown.text("#tiles") + shown.text("#readout")


def test_sort_filter_and_pick(window: Open, report: str) -> None:
    with window(report) as shown:
        shown.page.select_option("#sort", "evidence")
        rows = shown.lightness()
        assert max(rows[:3]) + 60 < rows[11]  # the suspects come first
        shown.page.mouse.move(*shown.cell(0, 70))
        assert shown.text("#readout").startswith(tuple(f"Worker {w}, step 70" for w in FAULTY_ONES))
        shown.page.select_option("#show", "suspects")
        assert len(shown.lightness()) == 3
        shown.page.select_option("#show", "all")
        shown.page.select_option("#sort", "number")
        shown.page.mouse.click(*shown.cell(9, 20))
        assert shown.text("#worker-title") == "Worker 9"
        assert "raised ValueError: no" in shown.text("#worker-errors")
        assert shown.page.locator("#ledger tr.picked th").inner_text() == "9"
        assert shown.page.locator("#worker-chart canvas").count() == 1
        shown.page.select_option("#show", "picked")
        assert len(shown.lightness()) == 1
        shown.page.click("#unpick")
        assert not shown.page.is_visible("#worker-part")
        assert len(shown.lightness()) == 12
        shown.page.click('#ledger tbody button[data-key="5"]')
        assert shown.text("#worker-title") == "Worker 5"
        shown.page.fill("#pick", "4")
        shown.page.press("#pick", "Enter")
        assert shown.text("#worker-title") == "Worker 4"


def test_the_headings_of_the_ledger_sort_it(window: Open, report: str) -> None:
    with window(report) as shown:
        first = shown.page.locator("#ledger tbody tr >> nth=0")
        assert shown.page.locator("#ledger tbody tr").count() == 12
        assert first.locator("th").inner_text() == "0"
        shown.page.click("#ledger thead button:has-text('Evidence')")
        assert first.locator("th").inner_text() in map(str, FAULTY_ONES)
        assert "suspect" in first.inner_text()
        head = shown.page.locator("#ledger thead th:has-text('Evidence')")
        assert head.get_attribute("aria-sort") == "descending"
        shown.page.press("#ledger thead button:has-text('Evidence')", "Enter")
        assert head.get_attribute("aria-sort") == "ascending"
        assert first.locator("th").inner_text() not in map(str, FAULTY_ONES)
        assert "raised 1" in shown.page.locator("#ledger tbody tr", has_text="raised").inner_text()


def test_keys_move_over_the_map(window: Open, report: str) -> None:
    with window(report) as shown:
        shown.page.focus("#map")
        for key in ("ArrowRight", "Shift+ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft"):
            shown.page.keyboard.press(key)
        assert shown.text("#readout").startswith("Worker 2, step 10: dropped, score")
        assert shown.page.locator("#spoken").text_content() == shown.text("#readout")
        whole = shown.axis("loss")
        shown.page.keyboard.press("+")
        shown.page.keyboard.press("+")
        assert shown.axis("loss") != whole
        assert shown.text("#readout").startswith("Worker 2, step 10: ")
        shown.page.keyboard.press("End")
        assert shown.text("#readout").startswith("Worker 2, step 79: ")
        shown.page.keyboard.press("Enter")
        assert shown.text("#worker-title") == "Worker 2"
        shown.page.keyboard.press("Escape")
        assert shown.axis("loss") == whole or shown.text("#readout").startswith("Worker 2, step 79: ")


def test_zooming_applies_to_all_charts(window: Open, report: str) -> None:
    charts = ("map", "accuracy", "loss", "time", "alive")
    with window(report) as shown:
        before = {chart: shown.axis(chart) for chart in charts}
        x, y = shown.cell(3, 20)
        shown.page.mouse.move(x, y)
        shown.page.mouse.down()
        shown.page.mouse.move(shown.cell(3, 39)[0], y, steps=3)
        shown.page.mouse.up()
        assert not shown.page.is_visible("#worker-part")  # a drag is not a click
        assert all(shown.axis(chart) != before[chart] for chart in charts)
        shown.page.mouse.move(*shown.cell(2, 40))  # the middle, where step 30 is now
        assert "step 29" in shown.text("#readout") or "step 30" in shown.text("#readout")
        shown.page.mouse.dblclick(*shown.cell(3, 40))
        shown.page.evaluate("pick(null)")
        assert {chart: shown.axis(chart) for chart in charts} == before
        shown.page.click("#in")
        assert shown.axis("time") != before["time"]
        shown.page.click("#whole")
        assert shown.axis("time") == before["time"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_is_readable_in_every_width_and_theme(window: Open, report: str, scheme: str) -> None:
    with window(report, scheme=scheme, width=400) as shown:
        for width in (400, 820, 1180, 400):
            shown.page.set_viewport_size({"width": width, "height": 800})
            assert shown.page.evaluate(FITS)
        shown.page.evaluate("pick(9)")
        assert shown.page.evaluate(FITS)
        ratio, text, count = shown.page.evaluate(CONTRAST)
        assert count > 100
        assert ratio >= 4.5, text


def test_the_theme_button_changes_the_theme(window: Open, report: str) -> None:
    with window(report) as shown:
        light = shown.axis("accuracy")
        shown.page.click("#theme")
        shown.page.click("#theme")
        assert shown.text("#theme") == "Theme: dark"
        assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 21, 27)"
        assert shown.axis("accuracy") != light


def test_printing_shows_all_tables_in_the_light_theme(window: Open, report: str) -> None:
    with window(report, scheme="dark", width=700) as shown:
        shown.page.emulate_media(media="print")
        assert shown.page.is_visible("#ledger tbody tr >> nth=11")
        assert shown.page.is_visible("#settings")
        assert not shown.page.is_visible(".controls")
        assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        scroll = "e => e.scrollHeight <= e.clientHeight + 1 && e.scrollWidth <= e.clientWidth + 1"
        assert shown.page.locator(".tall").evaluate(scroll)
        assert shown.page.evaluate(FITS)


def test_charts_fit_the_printed_page(window: Open, report: str) -> None:
    with window(report, scheme="dark") as shown:
        wide = "() => Math.max(...[...document.querySelectorAll('.uplot')].map((e) => e.offsetWidth))"
        assert shown.page.evaluate(wide) > 1000
        shown.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert shown.page.evaluate(wide) <= 690
        shown.page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert shown.page.evaluate(wide) > 1000


def test_notes_of_the_rule_are_listed_with_their_steps(window: Open, report: str) -> None:
    records = [replace(record, note="gave up" if 3 <= record.step < 6 else None) for record in made()]
    with window(build([run_of(records)])) as shown:
        assert shown.text("#noted") == "gave up (3 steps: 3 to 5)"
    with window(report) as shown:
        assert not shown.page.locator("#noted-part").is_visible()


def test_hostile_text_is_shown_as_text(window: Open) -> None:
    records = made()
    errors = {1: ReplyError(ErrorKind.OTHER, HOSTILE)}
    values = {
        **vars(records[3]),
        "errors": errors,
        "skipped": HOSTILE,
        "kept": None,
        "seconds": {HOSTILE: 1.0},
        "note": HOSTILE,
    }
    records[3] = Record(**values)
    html = build([run_of(records, HOSTILE, **{HOSTILE: HOSTILE, "rule": HOSTILE}), run_of(made(), "other" + HOSTILE)])
    with window(html) as shown:
        shown.page.select_option("#run", HOSTILE)
        shown.page.mouse.move(*shown.cell(1, 3))
        shown.page.evaluate("pick(1)")
        hostile = "</script><img src=x onerror=alert(1)>"
        for place in ("#run-title", "#settings", "#compare-table", "#compare-legend", "#skipped", "#noted", "#phases"):
            assert hostile in shown.page.locator(place).text_content()
        assert hostile in shown.text("#readout")
        assert hostile in shown.text("#worker-errors")
        assert shown.page.title() == "Comparison · Zeno"
        assert shown.page.locator("img").count() == 0
        assert shown.page.locator("script").count() == 2
        assert shown.page.evaluate(FITS)


def test_phases_may_have_names_of_the_language(window: Open) -> None:
    names = ["__proto__", "constructor", "kind", "toString"]
    records = [
        replace(record, seconds=dict.fromkeys(names, 0.5), workers=dict.fromkeys(names, 3)) for record in made(steps=20)
    ]
    with window(build([run_of(records, **dict.fromkeys(names, "text"))])) as shown:
        for name in names:
            assert f"{name}\t0.5 s\t25.0 %" in shown.text("#phases")
            assert name in shown.text("#alive-legend")
            assert name in shown.text("#settings")


def test_an_injected_script_does_not_run(window: Open, report: str) -> None:
    bad = report.replace('<p id="loading">', '<script>document.title = "taken"</script><p id="loading">')
    with window(bad) as shown:
        assert shown.page.title() == "run: zeno · Zeno"
        assert any("Content Security Policy" in text for text in shown.wrong)
        shown.wrong.clear()


def test_without_scores_the_map_shows_which_workers_were_kept(window: Open) -> None:
    records = [Record(**{**vars(record), "scores": None}) for record in made()]
    for record in records:
        assert record.scores is None
    with window(build([_twelve(records)])) as shown:
        assert "gives no scores" in shown.text("#map-words")
        rows = shown.lightness()
        assert max(rows[w] for w in FAULTY_ONES) + 60 < min(rows[w] for w in GOOD_ONES)
        shown.page.mouse.move(*shown.cell(2, 10))
        assert shown.text("#readout") == "Worker 2, step 10: dropped. Made faulty at this step."
        shown.page.evaluate("pick(2)")
        assert not shown.page.is_visible("#worker-chart")


def _twelve(records: list[Record]) -> Any:
    run = run_of(made(steps=1))
    run.records, run.planned = records, len(records)
    return run


def test_several_runs_are_compared(window: Open) -> None:
    runs = [run_of(made(seed=seed), name, rule=name) for seed, name in enumerate(("mean", "median", "zeno"))]
    with window(build(runs)) as shown:
        assert shown.page.locator("#compare-table tbody tr").count() == 3
        assert shown.page.locator("#compare-legend svg").count() == 3
        dashes = shown.page.locator("#compare-legend line").evaluate_all("ls => ls.map((l) => l.outerHTML)")
        assert len(set(dashes)) == 3
        shown.page.select_option("#run", "zeno")
        assert shown.text("#run-title") == "zeno"
        shown.page.click("#compare-table tbody button:has-text('median')")
        assert shown.text("#run-title") == "median"
        assert shown.page.locator("#run").input_value() == "median"
        value = (made(seed=1)[8].scores or [])[4]
        assert value is not None
        shown.page.mouse.move(*shown.cell(4, 8))
        assert _score(shown.text("#readout")) == pytest.approx(value, rel=6e-4)


def test_title_and_headline_name_task_rule_and_faults(window: Open) -> None:
    settings = {"task": "digits", "rule": "zeno(trim=4)", "faulty": "3", "fault": "sign_flip"}
    with window(build([run_of(made(), "zeno(trim=4)", **settings)])) as shown:
        about = "digits, zeno(trim=4), 3 of 12 workers faulty (sign_flip)"
        assert shown.text("#run-title") == about
        assert shown.page.title() == f"{about} · Zeno"
    control = run_of(made(), "mean without faults", task="digits", rule="mean", faulty="0", fault="label_flip")
    with window(build([control, run_of(made(), "ours", **settings)])) as shown:
        about = "Comparison: digits, 3 of 12 workers faulty (sign_flip)"
        assert shown.text("#compare-title") == about
        assert shown.page.title() == f"{about} · Zeno"
        shown.page.select_option("#run", "mean without faults")
        assert shown.text("#run-title") == "mean without faults: digits, mean, no faults"


def test_runs_are_compared_in_the_given_order_until_a_heading_is_clicked(window: Open) -> None:
    names = ["mean without faults", "zeno", "krum", "mean"]
    with window(build([run_of(made(), name, rule=name) for name in names])) as shown:
        heads = shown.page.locator("#compare-table tbody th")
        assert heads.all_inner_texts() == names
        assert shown.page.locator("#run option").all_inner_texts() == names
        shown.page.click("#compare-table thead button:has-text('Run')")
        assert heads.all_inner_texts() == sorted(names)


def test_a_page_of_an_own_loop_has_no_empty_boxes(window: Open) -> None:
    without: dict[str, Any] = {"evaluated": False, "accuracy": None, "train_loss": None, "workers": {}, "faulty": None}
    records = [replace(record, **without) for record in made()]
    with window(build([run_of(records, "mine", workers="12")])) as shown:
        assert shown.text("#run-title") == "mine: zeno"
        charts = shown.page.locator(".chart:visible")
        assert {charts.nth(i).get_attribute("id") for i in range(charts.count())} == {"map", "time"}
        assert all(charts.nth(i).locator("canvas").count() for i in range(charts.count()))
        names = shown.page.locator("[data-tile] dt").all_inner_texts()
        assert names == ["steps", "suspects", "skipped steps", "per step"]
        values = shown.page.locator("[data-tile] dd").all_inner_texts()
        assert "-" not in values
        assert not shown.page.is_visible("#curves-part")
    bare = [replace(record, seconds={}) for record in records]
    with window(build([run_of(bare, "one"), run_of(bare, "two")])) as shown:
        assert shown.page.locator(".chart:visible").count() == 1, "the map"
        assert not shown.page.is_visible("#time-part")


def test_a_run_that_will_be_evaluated_says_so(window: Open) -> None:
    with window(build([run_of(made(steps=5), eval_every="10")])) as shown:
        assert shown.text("#accuracy-value") == "not evaluated yet"
        assert shown.tile("test accuracy") == "-"


def test_seconds_are_means_and_peaks_stand_apart(window: Open) -> None:
    """A phase with a rare peak is drawn by its mean: at 0.24 of 22.9 ms, where 1 step in 100 takes 24 ms."""
    records = [
        replace(record, seconds={"gradients": 0.02266, "update": 0.024 if record.step % 100 == 7 else 0.0})
        for record in made(steps=3000)
    ]
    chart = "page.charts.find((chart) => chart.holder.id === 'time')"
    with window(build([run_of(records)])) as shown:
        xs, gradients, both = shown.page.evaluate(f"() => {chart}.plot.data.map((values) => [...values])")
        assert len(xs) == 150
        assert xs[:2] == [9.5, 29.5]
        assert gradients == pytest.approx([0.02266] * 150)
        update = np.array(both) - gradients
        assert update.mean() == pytest.approx(0.00024, rel=1e-4)
        assert update.max() == pytest.approx(0.024 / 20, rel=1e-4), "less than a tenth of the gradients"
        rows = [row.split("\t") for row in shown.page.locator("#phases tbody tr").all_inner_texts()]
        assert [[cell.strip() for cell in row] for row in rows] == [
            ["gradients", "22.7 ms", "99.0 %", "22.7 ms", "68 s"],
            ["update", "0.24 ms", "1.0 %", "24 ms", "0.72 s"],
        ]
        assert "The longest step was 7, with 46.7 ms." in shown.text("#time-words")
        shown.page.evaluate("page.group.zoom(99.5, 199.5)")
        _, gradients, both = shown.page.evaluate(f"() => {chart}.plot.data.map((values) => [...values])")
        assert max(np.array(both) - gradients) == pytest.approx(0.024, rel=1e-4), "nearby, a step is a point"
        shown.page.evaluate("page.group.whole()")
        assert len(shown.page.evaluate(f"() => {chart}.plot.data[0]")) == 150


def test_every_range_of_a_logarithmic_loss_can_be_shown(window: Open) -> None:
    runs = [run_of(made(steps=3000, seed=seed), name) for seed, name in enumerate(("one", "two"))]
    with window(build(runs)) as shown:
        for first, last in [(99.5, 199.5), (0.5, 90.5), (2900.5, 2910.5), (10.5, 2910.5)]:
            shown.page.evaluate(f"page.group.zoom({first}, {last}), page.compareGroup.zoom({first}, {last})")
        ticks = "([min, max]) => logSplits(min, max)"
        assert shown.page.evaluate(ticks, [0.0098, 0.0205]) == [0.01, 0.02]
        assert shown.page.evaluate(ticks, [0.9, 30]) == [1, 2, 5, 10, 20]
        assert shown.page.evaluate(ticks, [0.011, 0.012]) == [0.011, 0.012]
        assert len(shown.page.evaluate(ticks, [1e-300, 1e300])) <= 8


def test_long_runs_are_shown_in_bins(window: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zeno.report.page.html.CELLS", 250)
    with window(build([run_of(made())])) as shown:
        assert "a column stands for 4 steps" in shown.text("#map-words")
        rows = shown.lightness()
        assert max(rows[w] for w in FAULTY_ONES) + 60 < min(rows[w] for w in GOOD_ONES)
        shown.page.mouse.move(*shown.cell(2, 41))
        scores = [(record.scores or [])[2] for record in made()[40:44]]
        mean = np.mean([score for score in scores if score is not None])
        assert shown.text("#readout").startswith("Worker 2, steps 40 to 43: dropped at 100 % of steps, mean score ")
        assert _score(shown.text("#readout")) == pytest.approx(mean, rel=6e-4)


def test_the_live_view_updates_until_the_run_has_ended(window: Open, tmp_path: Path) -> None:
    records = made()
    folder = write(tmp_path / "runs" / "run", records[:20])
    with watched([tmp_path / "runs"], every=0.1) as (address, _), window(address) as shown:
        shown.page.wait_for_selector("#status:has-text('live')")
        assert shown.tile("steps") == "20 of 80"
        before = shown.axis("map")
        append(folder, records[20:50])
        shown.wait_for_steps("50 of 80")
        assert shown.axis("map") != before
        rows = shown.lightness()
        assert max(rows[w] for w in FAULTY_ONES) < 100 < 180 < min(rows[w] for w in GOOD_ONES)
        shown.page.mouse.move(*shown.cell(5, 45, steps=50))
        assert shown.text("#readout").startswith("Worker 5, step 45: dropped")
        shown.page.evaluate("page.group.zoom(10, 20)")
        zoomed = shown.axis("map")
        append(folder, records[50:60])
        shown.wait_for_steps("60 of 80")
        assert shown.axis("map") == zoomed  # what was zoomed to stays
        write(tmp_path / "runs" / "second", made(seed=3))
        shown.page.wait_for_selector("#compare-table tbody tr >> nth=1")
        write(folder, [])  # begun anew
        shown.wait_for_steps("0 of 80")
        write(folder, records[:5])
        shown.wait_for_steps("5 of 80")
        append(folder, records[5:])
        shown.page.wait_for_selector("#status:has-text('all runs have ended')")
        assert shown.tile("steps") == "80"
        assert all(url.startswith((address, "data:")) for url in shown.asked)


def test_the_live_view_notices_when_the_server_is_gone(window: Open, tmp_path: Path) -> None:
    with window_of_a_server_that_goes(window, tmp_path) as shown:
        shown.page.wait_for_selector("#status:has-text('the server is gone')")
        assert shown.tile("steps") == "20 of 80"
        shown.wrong.clear()  # the browser itself tells of each request that failed


@contextmanager
def window_of_a_server_that_goes(window: Open, tmp_path: Path) -> Iterator[Window]:
    with watched([write(tmp_path / "run", made()[:20])], every=0.1) as (address, _):
        manager = window(address)
        shown = manager.__enter__()
        shown.page.wait_for_selector("#status:has-text('live')")
    yield shown
    manager.__exit__(None, None, None)


def test_200_workers_by_10_000_steps_open(window: Open, record_property: Callable[[str, object], None]) -> None:
    html = big_page()
    start = time.perf_counter()
    with window(html) as shown:
        record_property("seconds_until_drawn", time.perf_counter() - start)
        print(f"200 workers x 10,000 steps: drawn after {time.perf_counter() - start:.2f} s")
        assert shown.tile("steps") == "10,000"
        rows = shown.lightness()
        assert len(rows) == 201  # with the server
        rows = rows[:200]
        assert max(rows[::10]) + 60 < min(row for worker, row in enumerate(rows) if worker % 10)
        shown.page.mouse.move(*shown.cell(10, 7000, rows=201, steps=10_000))
        assert "Worker 10, step " in shown.text("#readout")


def test_workers_are_shown_by_their_names(window: Open, tmp_path: Path) -> None:
    view = read_run(write(tmp_path / "run", named()))
    with window(build([view])) as shown:
        assert HOSTILE_NAME in shown.text("#verdict")
        shown.page.mouse.move(*shown.cell(2, 70))
        assert shown.text("#readout").startswith(f"Worker {HOSTILE_NAME}, step 70: dropped")
        shown.page.mouse.move(*shown.cell(10, 12))
        assert "Worker gpu-10, step 12: not asked." in shown.text("#readout")
        names = shown.page.locator("#ledger tbody th").all_inner_texts()
        assert sorted(names) == sorted(NAMES)
        shown.page.fill("#pick", "gpu-03")
        shown.page.press("#pick", "Enter")
        assert shown.text("#worker-title") == "Worker gpu-03"
        assert shown.page.evaluate(FITS)


def test_a_live_page_follows_workers_that_join_and_what_is_logged(window: Open, tmp_path: Path) -> None:
    records = named()
    folder = write(tmp_path / "run", records[:20])
    with watched([folder], every=0.1) as (address, _), window(address) as shown:
        shown.wait_for_steps("20 of 80")
        append(folder, [*records[20:JOINED], *records[JOINED:31]])
        shown.wait_for_steps("31 of 80")
        assert shown.tile("suspects").endswith("of 12")
        append(folder, [replace(records[30], accuracy=0.625)])
        expect(shown.page.locator('[data-tile="test accuracy"] dd')).to_have_text("62.5 %", timeout=10_000)
