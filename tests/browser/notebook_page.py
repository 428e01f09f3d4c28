"""One notebook in JupyterLab, as a visitor's browser shows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from install_browser import AXE
from playwright.sync_api import Locator, Page

SCREENSHOTS = Path(__file__).parent / "screenshots"
OPEN_MS = 60_000
RUN_MS = 180_000
HIGHEST = 100_000  # pixels
SERIOUS = ("serious", "critical")

# JupyterLab says what it is doing; the page's text (`[*]`) lags behind.
OPENED = """() => {
    const session = window.jupyterapp?.shell.currentWidget?.sessionContext;
    return session?.isReady && session.session?.kernel?.status === 'idle';
}"""
RUN = """() => {
    window.finished = false;
    window.jupyterapp.commands.execute('notebook:run-all-cells')
        .finally(() => { window.finished = true; });
}"""
IDLE = """() => {
    const notebook = window.jupyterapp.shell.currentWidget;
    return window.finished && notebook.sessionContext.session?.kernel?.status === 'idle'
        && !document.querySelector('.jp-Notebook .jp-Cell.jp-mod-pending-execution');
}"""
NOT_RUN = """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
    .filter(cell => cell.type === 'code' && cell.sharedModel.source.trim())
    .filter(cell => cell.executionCount === null)
    .map(cell => cell.sharedModel.source)"""
ERRORS = """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
    .filter(cell => cell.type === 'code')
    .flatMap(cell => cell.outputs.toJSON())
    .filter(output => output.output_type === 'error')
    .map(output => `${output.ename}: ${output.evalue}`)"""
SHUT_DOWN = "() => window.jupyterapp?.serviceManager.sessions.shutdownAll()"
THEME = "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })"
# the style sheet is a file: <body> is changed once it is there, and until then a splash covers all
THEME_SET = """theme => document.body.dataset.jpThemeName === theme
    && !document.querySelector('#jupyterlab-splash')"""

VIOLATIONS = """async selector => (await axe.run(selector)).violations.map(each => ({
    rule: each.id,
    impact: each.impact,
    elements: each.nodes.map(node => node.html),
    why: each.nodes.map(node => node.failureSummary),
}))"""
# JupyterLab's <body> has no height and hides what overflows: axe would take all in it for unseen,
# and say nothing of contrast. Its content is placed absolutely, so this moves nothing.
BODY_WITH_HEIGHT = "body { min-height: 100vh }"
# what of the notebook does not fit on the screen, in pixels, after two frames for the layout
HIDDEN = """async () => {
    for (const _ of [1, 2]) await new Promise(requestAnimationFrame);
    const notebook = window.jupyterapp.shell.currentWidget.content.node;
    const screen = notebook.querySelector('.jp-WindowedPanel-outer');
    screen.scrollTop = 0;
    const content = notebook.querySelector('.jp-WindowedPanel-viewport');
    return Math.max(0, Math.ceil(content.offsetHeight - screen.clientHeight));
}"""


class NotebookPage:
    """A page and what a visitor does with it; `page` itself is there for everything else."""

    def __init__(self, page: Page, lab_url: str) -> None:
        self.page = page
        self.lab_url = lab_url

    def open(self, name: str) -> None:
        """Opens a notebook as `casestudy lab` does, in a new workspace, and waits for its kernel.

        Not in single-document mode: with the file browser beside it there is least room.
        """
        self.page.goto(f"{self.lab_url}lab/tree/{quote(name)}?reset")
        self.page.wait_for_function(OPENED, timeout=OPEN_MS)

    def run_all(self) -> None:
        """Run > Run All Cells, until the kernel is idle; every code cell must have been run."""
        self.page.evaluate(RUN)
        self.page.wait_for_function(IDLE, timeout=RUN_MS)
        not_run = self.page.evaluate(NOT_RUN)
        assert not not_run, f"{len(not_run)} cells were not run: {self.error_outputs()}"

    def error_outputs(self) -> list[str]:
        """What the cells' errors say, if there are any."""
        return list(self.page.evaluate(ERRORS))

    def cell_with(self, text: str) -> Locator:
        """The code cell in whose source `text` stands."""
        source = self.page.locator(".jp-InputArea", has_text=text)
        return self.page.locator(".jp-Notebook .jp-CodeCell").filter(has=source)

    def output_of(self, text: str) -> Locator:
        """What the code cell in whose source `text` stands has put out."""
        return self.cell_with(text).locator(".jp-OutputArea-output")

    def theme(self, name: Literal["Light", "Dark"]) -> None:
        """Settings > Theme; returns when the notebook is shown in it."""
        self.page.evaluate(THEME, f"JupyterLab {name}")
        self.page.wait_for_function(THEME_SET, arg=f"JupyterLab {name}")

    def screenshot(self, name: str) -> Path:
        """What is in sight now, as `screenshots/NAME.png`."""
        path = SCREENSHOTS / f"{name}.png"
        self.page.screenshot(path=path)
        return path

    def axe(self, selector: str) -> list[dict[str, Any]]:
        """The serious and critical violations inside `selector`: rule, impact, elements, why."""
        assert self.page.locator(selector).count(), f"nothing is there to check: {selector}"
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.add_script_tag(path=AXE)
            self.page.add_style_tag(content=BODY_WITH_HEIGHT)
        with self.all_in_sight():
            violations = self.page.evaluate(VIOLATIONS, selector)
        return [each for each in violations if each["impact"] in SERIOUS]

    @contextmanager
    def all_in_sight(self) -> Iterator[None]:
        """A screen as high as the notebook: axe passes over the contrast of what is scrolled away.

        Only the height: the width, which decides how things are laid out, stays.
        """
        before = self.page.viewport_size
        assert before, "every context here has a viewport"
        height = before["height"]
        while hidden := self.page.evaluate(HIDDEN):
            height += hidden
            assert height < HIGHEST, "the notebook grows with the screen"
            self.page.set_viewport_size({"width": before["width"], "height": height})
        yield
        self.page.set_viewport_size(before)

    def shut_down(self) -> None:
        """Ends this lab's kernels, so that the next visitor starts with a new one."""
        self.page.evaluate(SHUT_DOWN)
