"""The pages in real Chromium: nothing on the console, nothing fetched, nothing wider than the screen;
sorting, values under the pointer, light and dark, print, and the live page.

Chromium is spoken to through its DevTools protocol over two pipes (file descriptors 3 and 4, JSON with a NUL
after each).
"""

from __future__ import annotations

import base64
import fcntl
import io
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests import doctored

from equipoise import run
from equipoise.compare import Failure, conclude, make_plan
from equipoise.config import Config
from equipoise.report import page as pages
from equipoise.report import read_run, write_report
from equipoise.report.figures import comparison_figures, run_figures

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 60.0
"""seconds to wait for an answer; a busy machine is slow, and a right answer never waits for this"""


class Refused(Exception):
    """Chromium could not do what it was asked for."""


class Browser:
    """One Chromium and one tab."""

    def __init__(self, program: str, folder: Path) -> None:
        down, self._out = os.pipe()
        self._in, up = os.pipe()
        # Numbers above those the child wants them under, so that one does not overwrite the other.
        child = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (down, up)]
        quiet = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
        pipes = [(os.POSIX_SPAWN_DUP2, child[0], 3), (os.POSIX_SPAWN_DUP2, child[1], 4)]
        words = [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self._pid = os.posix_spawn(program, words, {**os.environ}, file_actions=[*quiet, *pipes])
        for fd in (down, up, *child):
            os.close(fd)
        self._rest, self._count, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """Ask the tab for something and wait for the answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": given}
        os.write(
            self._out,
            json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0",
        )
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise Refused(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], PATIENCE)
            assert ready, "Chromium does not answer"
            part = os.read(self._in, 1 << 16)
            assert part, "Chromium has ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def open(self, path: Path, width: int = 1280, dark: bool = False) -> None:
        """Open a file, with no memory of what came before."""
        self.size(width)
        self.media(dark=dark)
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")

    def size(self, width: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )

    def media(self, dark: bool = False, kind: str = "screen") -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=kind, features=[feature])

    def ask(self, script: str) -> Any:
        """The value of an expression in the page."""
        while True:
            try:
                found = self.call(
                    "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
                )
                break
            except Refused as error:
                if not any(
                    word in str(error) for word in ("navigated", "context")
                ):  # a live page was just being loaded again
                    raise
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, script: str) -> Any:
        """The first value that is not false, nought or nothing."""
        end = time.monotonic() + PATIENCE
        while not (found := self.ask(script)):
            assert time.monotonic() < end, f"it did not happen: {script}"
            time.sleep(0.05)
        return found

    def middle(self, element: str) -> tuple[float, float]:
        """Where an element is, once it is scrolled to."""
        self.ask(f"({element}).scrollIntoView({{block: 'center', behavior: 'instant'}})")
        self.ask(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))).then(() => true)"
        )
        x, y = self.ask(
            f"(() => {{ const b = ({element}).getBoundingClientRect(); return [b.x + b.width / 2, b.y + "
            f"b.height / 2] }})()"
        )
        return x, y

    def click(self, element: str) -> None:
        x, y = self.middle(element)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def complaints(self) -> list[Any]:
        """What the console holds."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event["params"] for event in self.events if event["method"] in kinds]

    def requests(self) -> list[str]:
        return [
            one["params"]["request"]["url"]
            for one in self.events
            if one["method"] == "Network.requestWillBeSent"
        ]

    def close(self) -> None:
        os.close(self._out)  # the end of its input is the end of Chromium
        end = time.monotonic() + 10
        while os.waitpid(self._pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > end:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                break
            time.sleep(0.02)
        os.close(self._in)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(
            f"no browser: none of {', '.join(NAMES)} is installed; `make browser` installs it where it can"
        )
    found = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def made(tiny: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages of a run with one label, of one whose classes have long names, of a run with several labels,
    and of a comparison in which a run failed."""
    folder = tmp_path_factory.mktemp("pages")
    single, multi = (
        tiny("fca", train={"rounds": 3}),
        tiny("fedavg", data={"task": "multi"}, train={"rounds": 1}),
    )
    for name, config in (("single", single), ("multi", multi)):
        run(config, folder / name)
        write_report(folder / name)
    shutil.copytree(folder / "single", folder / "long")
    plan = folder / "long" / "blueprint.json"
    classes = doctored.table(plan)["classes"]
    doctored.change(plan, classes=[f"{name}_{'unbroken' * 8}" for name in classes])
    write_report(folder / "long")
    table = {key: value for key, value in tiny().table().items() if key not in ("base", "method")}
    table["train"] |= {"rounds": 1, "batch_size": 32}
    table["partition"]["sites"] = 2
    race = make_plan(table, ["fedavg", "local", "fca"], seeds=(0, 1))
    for job in race.jobs[:-1]:
        run(job.config, folder / "comparison" / job.name)
    conclude(race, folder / "comparison", [Failure("fca/1", "the process died", 1)])
    return {name: folder / name / "report.html" for name in ("single", "long", "multi", "comparison")}


KINDS = ("single", "multi", "comparison")
TABLE = "document.querySelector('#data table')"
FIRST = f"[...{TABLE}.tBodies[0].rows].map((row) => row.cells[0].textContent)"


def head(column: int) -> str:
    return f"{TABLE}.tHead.rows[0].cells[{column}]"


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_is_whole_and_asks_for_nothing(browser: Browser, made: dict[str, Path], kind: str) -> None:
    browser.open(made[kind])
    folder = made[kind].parent
    if kind == "comparison":
        facts = json.loads((folder / "comparison.json").read_text())
        arms = [
            (label, [read_run(folder / one["folder"]) for one in arm["runs"]])
            for label, arm in facts["arms"].items()
        ]
        figures = comparison_figures(arms)
    else:
        figures = run_figures(read_run(folder))
    wanted = sorted(f"figure-{figure.key}" for figure in figures)
    assert sorted(browser.ask("[...document.querySelectorAll('figure')].map((one) => one.id)")) == wanted
    drawn = (
        "[...document.querySelectorAll('figure svg')].every((one) => one.getBoundingClientRect().height > 50)"
    )
    assert browser.ask(drawn) is True
    tables = (
        "[...document.querySelectorAll('figure')].filter((one) => !one.querySelector('details "
        "table')).map((one) => one.id)"
    )
    assert browser.ask(tables) == sorted(f"figure-{figure.key}" for figure in figures if not figure.rows)
    assert browser.ask("document.querySelectorAll('.short dt').length") >= 5
    assert browser.complaints() == []
    assert browser.requests() == [made[kind].as_uri()]


@pytest.mark.parametrize("kind", [*KINDS, "long"])
@pytest.mark.parametrize("width", [375, 1280])
def test_nothing_is_wider_than_the_screen(
    browser: Browser, made: dict[str, Path], kind: str, width: int
) -> None:
    browser.open(made[kind], width)
    browser.ask("for (const one of document.querySelectorAll('details')) one.open = true")
    assert browser.ask("innerWidth") == width
    assert browser.ask("document.scrollingElement.scrollWidth - document.documentElement.clientWidth") == 0
    cut = """[...document.querySelectorAll('main *')].filter((one) => !one.closest('.scroll, pre, svg')
        && one.getBoundingClientRect().right > innerWidth + 0.5).map((one) => one.outerHTML.slice(0, 80))"""
    assert browser.ask(cut) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (375, 667)])
def test_the_first_screen_says_what_the_page_is_not_and_where_it_was_trained(
    browser: Browser, made: dict[str, Path], kind: str, width: int, height: int
) -> None:
    browser.open(made[kind], width)
    told = "[...document.querySelectorAll('header p')]"
    bottoms = browser.ask(f"{told}.map((one) => [one.textContent, one.getBoundingClientRect().bottom])")
    shown = [text for text, bottom in bottoms if bottom <= height]
    assert "For research. Not a medical device." in shown
    assert any("simulated on one machine" in text for text in shown)


@pytest.mark.parametrize("dark", [False, True])
def test_a_table_that_is_wider_than_its_place_shows_that_it_scrolls(
    browser: Browser, made: dict[str, Path], dark: bool
) -> None:
    """The shade at its right edge is there, and covered once the end is reached."""
    browser.open(made["comparison"], 375, dark)
    wide = "[...document.querySelectorAll('.scroll')].find((one) => one.scrollWidth > one.clientWidth + 50)"

    def edge(left: str) -> np.ndarray:
        """The brightness of the pixels at the right edge of the table, in its empty last line."""
        browser.ask(
            f"(() => {{ const one = {wide}; one.style.paddingBottom = '40px'; one.scrollLeft = {left}; }})()"
        )
        browser.middle(wide)
        right, bottom = browser.ask(
            f"(() => {{ const b = {wide}.getBoundingClientRect(); return [b.right, b.bottom + scrollY] }})()"
        )
        clip = {"x": right - 6, "y": bottom - 35, "width": 6, "height": 4, "scale": 1}
        shot = browser.call("Page.captureScreenshot", format="png", clip=clip)["data"]
        picture = Image.open(io.BytesIO(base64.b64decode(shot))).convert("L")
        return np.asarray(picture).astype(int)

    assert browser.ask(f"!!{wide}")
    at_start, at_end = edge("0"), edge("10000")
    assert np.ptp(at_end) <= 3
    assert at_start.mean() < at_end.mean() - 8


CONTRAST = """(() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return {rgb: [r, g, b], a};
  };
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (rgb) => { const [r, g, b] = rgb.map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (one) => {
    for (; one; one = one.parentElement) {
      const c = parse(getComputedStyle(one).backgroundColor);
      if (c.a === 1) return c.rgb;
    }
  };
  let worst = [21, ''];
  for (const one of document.querySelectorAll('main *')) {
    const written = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (one.closest('svg') || !written) continue;
    const [a, b] = [light(parse(getComputedStyle(one).color).rgb), light(ground(one))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, one.outerHTML.slice(0, 80)];
  }
  return worst;
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_and_the_switch_is_remembered(
    browser: Browser, made: dict[str, Path], dark: bool
) -> None:
    def ground() -> int:
        return int(browser.ask("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]"))

    for kind in KINDS:
        browser.open(made[kind], dark=dark)
        assert (ground() < 60) is dark
        ratio, text = browser.ask(CONTRAST)
        assert ratio >= 4.5, text
    browser.click("document.querySelector('#theme')")
    assert (ground() < 60) is not dark
    browser.open(made["single"], dark=dark)
    assert (ground() < 60) is not dark
    browser.media(dark=True, kind="print")
    assert ground() > 200  # nobody prints black pages
    browser.ask("localStorage.clear()")
    assert browser.complaints() == []


def test_a_click_or_a_key_on_a_head_sorts(browser: Browser, made: dict[str, Path]) -> None:
    browser.open(made["single"])
    columns = browser.ask(f"{TABLE}.tHead.rows[0].cells.length")
    numbers = (
        f"[...{TABLE}.tBodies[0].rows].map((row) => "
        f"Number(row.cells[{columns - 3}].textContent.replace(',', '')))"
    )
    before, foot = browser.ask(numbers), browser.ask(f"{TABLE}.tFoot.textContent")
    assert len(set(before)) > 1
    browser.click(f"{head(columns - 3)}.querySelector('button')")
    assert browser.ask(numbers) == sorted(before, reverse=True)
    assert browser.ask(f"{head(columns - 3)}.ariaSort") == "descending"
    browser.click(f"{head(columns - 3)}.querySelector('button')")
    assert browser.ask(numbers) == sorted(before)
    assert browser.ask(f"{head(columns - 3)}.ariaSort") == "ascending"
    browser.ask(f"{head(0)}.querySelector('button').focus()")
    for kind in ("keyDown", "keyUp"):
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        browser.call("Input.dispatchKeyEvent", type=kind, **key)
    names = browser.ask(FIRST)
    assert names == sorted(names) and browser.ask(f"{head(0)}.ariaSort") == "ascending"
    assert browser.ask(f"{head(columns - 3)}.ariaSort") is None
    assert browser.ask(f"{TABLE}.tFoot.textContent") == foot


def test_numbers_with_signs_units_and_gaps_are_sorted_as_numbers(
    browser: Browser, made: dict[str, Path]
) -> None:
    browser.open(made["comparison"])
    cells = ["9.5 ± 2.0", "–", "< 0.001", "10.5 ± 9", "1,234", "-3.1 %", "+2"]
    rows = "".join(f"<tr><td>{cell}</td></tr>" for cell in cells)
    body = f"{TABLE}.tBodies[0]"
    browser.ask(f"{body}.innerHTML = {json.dumps(rows)}; {head(0)}.classList.add('n')")
    browser.click(f"{head(0)}.querySelector('button')")
    assert browser.ask(FIRST) == ["1,234", "10.5 ± 9", "9.5 ± 2.0", "+2", "< 0.001", "-3.1 %", "–"]
    browser.click(f"{head(0)}.querySelector('button')")
    assert browser.ask(FIRST) == ["-3.1 %", "< 0.001", "+2", "9.5 ± 2.0", "10.5 ± 9", "1,234", "–"]


@pytest.mark.parametrize("touch", [False, True])
def test_the_value_under_pointer_or_finger_is_shown(
    browser: Browser, made: dict[str, Path], touch: bool
) -> None:
    browser.open(made["single"])
    mark = "document.querySelector('figure [data-tip]')"
    text, tip = browser.ask(f"{mark}.dataset.tip"), "document.querySelector('#tip')"
    assert text and browser.ask(f"{tip}.hidden") is True
    x, y = browser.middle(mark)
    if touch:
        browser.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    else:
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    browser.until(f"!{tip}.hidden")
    shown = browser.ask(f"{tip}.textContent")
    assert shown in browser.ask(
        "[...document.querySelectorAll('figure [data-tip]')].map((one) => one.dataset.tip)"
    )
    box = browser.ask(f"{tip}.getBoundingClientRect().toJSON()")
    assert box["left"] >= 0 and box["right"] <= 1280 and box["width"] > 10
    browser.call(
        "Input.dispatchKeyEvent", type="keyDown", key="Escape", code="Escape", windowsVirtualKeyCode=27
    )
    assert browser.ask(f"{tip}.hidden") is True


def test_what_is_closed_is_printed(browser: Browser, made: dict[str, Path]) -> None:
    browser.open(made["single"])
    folds = "[...document.querySelectorAll('details')].filter((one) => !one.open).length"
    closed = browser.ask(folds)
    assert closed > 0
    browser.ask(f"addEventListener('beforeprint', () => {{ window.left = {folds} }})")
    assert browser.call("Page.printToPDF", printBackground=True)["data"].startswith(
        "JVBERi0"
    )  # %PDF- in base64
    assert browser.ask("window.left") == 0
    assert browser.ask(folds) == closed


def test_no_script_but_ours_can_run(browser: Browser, made: dict[str, Path]) -> None:
    browser.open(made["single"])
    browser.ask("""(() => {
        const one = document.createElement('script');
        one.textContent = 'window.caught = 1';
        document.body.append(one);
        const image = '<img src=x onerror="window.caught = 1">';
        document.body.insertAdjacentHTML('beforeend', image);
    })()""")
    browser.until("document.images.length === 1")
    assert browser.ask("window.caught") is None
    assert any("Content Security Policy" in str(one) for one in browser.complaints())
    failed = [event["params"] for event in browser.events if event["method"] == "Network.loadingFailed"]
    assert [one["blockedReason"] for one in failed] == ["csp"]


def test_the_live_page_follows_the_run_and_stays_where_the_reader_is(
    browser: Browser, made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "REFRESH", 0.2)
    folder = Path(shutil.copytree(made["single"].parent, tmp_path / "live"))
    rows = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    result = (folder / "result.json").read_bytes()
    (folder / "result.json").unlink()
    (folder / "metrics.jsonl").write_text(rows[0])
    browser.open(write_report(folder, live=True))
    # The page may be loaded again between any two questions, so each looks at a whole page, and at all it
    # wants to know.
    whole = "document.readyState === 'complete' && document.querySelector('.banner h2')?.textContent"
    button = f"{head(0)}.querySelector('button').click()"
    fold = "document.querySelector('#training details').open"
    browser.until(
        f"{whole} === 'Round 1 of 3: not finished' && ({fold} = true, {button}, {button}, scrollTo(0, "
        f"333), true)"
    )
    (folder / "metrics.jsonl").write_text(
        rows[0] + rows[1] + '{"round": 3, "tes'
    )  # a row that is being written
    write_report(folder, live=True)
    kept = browser.until(f"{whole} === 'Round 2 of 3: not finished' && [{fold}, {head(0)}.ariaSort, scrollY]")
    assert kept == [True, "descending", 333]
    (folder / "metrics.jsonl").write_text("".join(rows))
    (folder / "result.json").write_bytes(result)
    write_report(folder, live=True)
    browser.until("document.readyState === 'complete' && !document.documentElement.dataset.live")
    assert browser.ask("document.querySelector('.banner')") is None
    browser.ask("window.still = true")
    time.sleep(0.6)
    assert browser.ask("window.still") is True  # a finished page no longer looks again
    assert browser.complaints() == []
    assert set(browser.requests()) == {(folder / "report.html").as_uri()}
