"""A real JupyterLab, as `make lab` starts it, and a real Chromium that opens notebooks in it.

Without a browser these tests skip and say so; where ``CI`` is ``true`` they fail instead.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SCREENSHOTS = Path(__file__).parent / "screenshots"
CHROMIUM_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
]


def unavailable(reason):
    """Skip, or fail where a skip would hide that nothing was tested."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"browser tests need {reason}")


@pytest.fixture(scope="session")
def browser():
    path = next(
        filter(None, map(shutil.which, ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome"))), None
    )
    if path is None:
        unavailable("Chromium at /usr/bin/chromium, or chromium on the PATH")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        unavailable("playwright: pip install -e '.[test]'")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """A JupyterLab over a copy of the notebooks, with settings and trust of its own: the first day of a clone."""
    home = tmp_path_factory.mktemp("lab")
    root = home / "workbook"
    shutil.copytree(REPOSITORY / "notebooks", root / "notebooks", ignore=shutil.ignore_patterns(".*"))
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    command = [sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", "--ServerApp.port=0"]
    command += [f"--ServerApp.root_dir={root}", "--expose-app-in-browser"]
    with (home / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=root)
        try:
            yield Lab(_wait_for_url(process, home), root)
        finally:
            process.terminate()
            process.wait(timeout=20)


def _wait_for_url(process, home):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        for file in (home / "runtime").glob("jpserver-*.json"):
            try:
                server = json.loads(file.read_text())
            except json.JSONDecodeError:  # half written
                continue
            return server["url"], server["token"]
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start:\n{(home / 'log').read_text()}")


class Lab:
    """The address of a running JupyterLab, and the folder that it shows."""

    def __init__(self, address, root):
        self.url, self.token = address
        self.root = root

    def open(self, browser, notebook, width=1280, height=900):
        """Open a notebook in a browser that has never been here before."""
        context = browser.new_context(viewport={"width": width, "height": height})
        page = context.new_page()
        page.goto(f"{self.url}lab/tree/{notebook}?reset&token={self.token}")
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        return Opened(page)


class Opened:
    """A notebook that is open in JupyterLab, seen as a reader sees it."""

    def __init__(self, page):
        self.page = page
        self.console_errors = []
        page.on("console", lambda message: message.type == "error" and self.console_errors.append(message.text))
        page.on("pageerror", lambda error: self.console_errors.append(str(error)))

    def command(self, name, **arguments):
        """Execute one of JupyterLab's commands, as its menus do."""
        return self.page.evaluate(
            "([name, arguments]) => { window.jupyterapp.commands.execute(name, arguments); }", [name, arguments]
        )

    def run_all(self, timeout=120):
        """Run all cells, wait for the last one, and return the cells as the notebook's JSON has them."""
        self.page.wait_for_function(
            "() => window.jupyterapp.shell.currentWidget.context.sessionContext.session?.kernel?.status === 'idle'",
            timeout=60_000,
        )
        self.page.evaluate(
            "() => window.jupyterapp.commands.execute('notebook:run-all-cells').then(() => { window.allRun = true; })"
        )
        self.page.wait_for_function("() => window.allRun", timeout=1000 * timeout)
        self.settle()
        return self.cells()

    def settle(self):
        """Wait until the browser has painted and no picture is still loading."""
        self.page.wait_for_function("() => [...document.images].every(image => image.complete)")
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def cells(self):
        return self.page.evaluate("() => window.jupyterapp.shell.currentWidget.content.model.toJSON().cells")

    def screenshot(self, name):
        """Save the whole notebook, not only the part in the window."""
        SCREENSHOTS.mkdir(exist_ok=True)
        size = self.page.viewport_size
        content = self.page.evaluate("() => document.querySelector('.jp-WindowedPanel-outer').scrollHeight")
        self.page.set_viewport_size({"width": size["width"], "height": min(content + 150, 15_000)})
        self.settle()
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png")
        self.page.set_viewport_size(size)

    def close(self):
        self.page.context.close()
