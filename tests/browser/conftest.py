"""A real JupyterLab over a copy of the notebooks, and a real browser that looks at it.

The scope is the package, not the session: Playwright keeps an event loop running in this thread,
and later tests that start one of their own would fail.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from install_browser import AXE
from playwright.sync_api import Browser, sync_playwright

from casestudy import course
from tests.browser.notebook_page import NotebookPage

START_SECONDS = 90
POLL_SECONDS = 0.1
EXTENSION = Path("@jupyterlab", "apputils-extension")
NO_POPUPS = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab: its address, the folder that it serves, and its visitors' settings."""

    url: str
    root: Path
    settings: Path


@pytest.fixture(scope="package")
def chromium() -> str:
    """Where Debian's chromium is; whatever asks for it is skipped where the tests cannot be run."""
    path = shutil.which("chromium")
    if path and AXE.is_file():
        return path
    reason = f"{'axe-core' if path else 'chromium'} is not installed: tools/install_browser.py"
    if os.environ.get("CI"):  # a person may lack it; in CI a skip would be a silent hole
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="package")
def lab(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab without a token on a free port; its notebooks are a copy, since it saves them."""
    home = tmp_path_factory.mktemp("jupyterlab")
    root, settings = home / "notebooks", home / "settings"
    shutil.copytree(course.NOTEBOOKS, root, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    silence(settings)
    log = home / "log.txt"
    with log.open("w") as output:
        server = subprocess.Popen(
            command(root),
            env=environment(home),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=root,
            start_new_session=True,  # Ctrl-C is for pytest, which then stops the server
        )
        try:
            yield Lab(address(server, home / "runtime", log), root, settings)
        finally:
            stop(server)


def command(root: Path) -> list[str]:
    """Port 0: the system picks a free one. The app is exposed so that tests can wait for it."""
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": 0,
        "ServerApp.root_dir": root,
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
        "IdentityProvider.token": "",
        "PasswordIdentityProvider.hashed_password": "",
        "LabApp.expose_app_in_browser": True,
        "LabApp.news_url": "",
    }
    return [sys.executable, "-m", "jupyterlab", *(f"--{key}={options[key]}" for key in options)]


def environment(home: Path) -> dict[str, str]:
    """Nobody's own settings; the kernel is found all the same, as it lies in the environment."""
    folders = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    return {**os.environ, **{name: str(home / folder) for name, folder in folders.items()}}


def silence(settings: Path) -> None:
    """No question about news, no look for updates: nothing of it belongs to the course."""
    file = settings / EXTENSION / "notification.jupyterlab-settings"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(NO_POPUPS))


def address(server: subprocess.Popen[bytes], runtime: Path, log: Path) -> str:
    """Where the server answers, once it does."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        for file in runtime.glob(f"jpserver-{server.pid}.json"):
            url = answering(file)
            if url:
                return url
        time.sleep(POLL_SECONDS)
    pytest.fail(f"JupyterLab does not answer (exit status {server.poll()}):\n{log.read_text()}")


def answering(file: Path) -> str | None:
    """The address in a server's own file, if that is written and the server behind it is up."""
    try:
        url = str(json.loads(file.read_text())["url"])
        with urlopen(f"{url}api/status", timeout=5):
            return url
    except (ValueError, URLError, TimeoutError):
        return None


def stop(server: subprocess.Popen[bytes]) -> None:
    """At the first signal a server shuts its kernels down, and then itself."""
    server.terminate()
    try:
        server.wait(timeout=30)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    """Headless, and through the path: Playwright's own browsers are not needed."""
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # root has no sandbox
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield started
        started.close()


@pytest.fixture
def page(lab: Lab, browser: Browser) -> Iterator[NotebookPage]:
    """A new visitor with a small screen; afterwards no kernel and no choice of theme is left."""
    context = browser.new_context(viewport={"width": 1024, "height": 768})
    visitor = NotebookPage(context.new_page(), lab.url)
    yield visitor
    visitor.shut_down()
    context.close()
    (lab.settings / EXTENSION / "themes.jupyterlab-settings").unlink(missing_ok=True)
