"""JupyterLab as a reader sees it: a server as `make lab` starts it, and a notebook that is open in Chromium."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

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
SERIOUS = ("serious", "critical")
ALL_THAT_FITS = ".serving-panel, .jp-Cell .jp-RenderedMarkdown, .jp-Cell mjx-container, .formula-sheet td"


def find_chromium():
    """Return the path of a Chromium, or None."""
    names = ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Lab:
    """A running JupyterLab over a folder, with settings and trust of its own: the first day of a clone.

    Parameters
    ----------
    home : pathlib.Path
        A folder for the server's files. The reader's folder is ``home / "workbook"``.
    """

    def __init__(self, home):
        self.root = home / "workbook"
        self.root.mkdir(exist_ok=True)
        self._home = home
        folders = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR", "LAB_SETTINGS_DIR", "LAB_WORKSPACES_DIR")
        environment = os.environ | {
            f"JUPYTER{name}" if name.startswith("LAB") else f"JUPYTER_{name}": str(home / name) for name in folders
        }
        environment["IPYTHONDIR"] = str(home / "ipython")
        command = [sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", "--ServerApp.port=0"]
        command += [f"--ServerApp.root_dir={self.root}", "--expose-app-in-browser"]
        with (home / "log").open("w") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.root)
        self.url, self.token = self._wait_for_address()

    def _wait_for_address(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._process.poll() is None:
            for file in (self._home / "RUNTIME_DIR").glob("jpserver-*.json"):
                try:
                    server = json.loads(file.read_text())
                except json.JSONDecodeError:  # half written
                    continue
                return server["url"], server["token"]
            time.sleep(0.1)
        self.stop()
        raise RuntimeError(f"JupyterLab did not start:\n{(self._home / 'log').read_text()}")

    def stop(self):
        """End the server and its kernels."""
        self._process.terminate()
        self._process.wait(timeout=30)

    def open(self, browser, notebook):
        """Open a notebook in a browser that has never been here before."""
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(15_000)
        opened = Opened(context.new_page())
        opened.page.goto(f"{self.url}lab/tree/{notebook}?reset&token={self.token}")
        opened.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        opened.page.wait_for_function("() => window.jupyterapp.shell.currentWidget?.context.isReady", timeout=60_000)
        opened.settle()
        return opened


class Opened:
    """An open notebook."""

    def __init__(self, page):
        self.page = page
        self.console_errors = []
        page.on("console", lambda message: message.type == "error" and self.console_errors.append(message.text))
        page.on("pageerror", lambda error: self.console_errors.append(error.stack))

    def command(self, name, **arguments):
        """Execute one of JupyterLab's commands, as its menus do, and wait for it."""
        execute = "([name, arguments]) => window.jupyterapp.commands.execute(name, arguments).then(() => {})"
        self.page.evaluate(execute, [name, arguments])

    def run_all(self):
        """Run all cells and wait until what they show is there."""
        status = "window.jupyterapp.shell.currentWidget.context.sessionContext.session?.kernel?.status"
        self.page.wait_for_function(f"() => {status} === 'idle'", timeout=60_000)
        self.command("notebook:run-all-cells")
        self.page.wait_for_function(f"() => {status} === 'idle'", timeout=120_000)
        self.settle()

    def settle(self):
        """Wait until the browser has painted and no picture is still loading."""
        self.page.wait_for_function("() => [...document.images].every(image => image.complete)")
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def cells(self):
        """The cells as the notebook's file would have them."""
        return self.page.evaluate("() => window.jupyterapp.shell.currentWidget.content.model.toJSON().cells")

    def wait_until_changed(self, picture, before):
        """Wait until an image widget shows another picture than the one at the address `before`."""
        self.page.wait_for_function(
            "([picture, before]) => picture.src !== before && picture.complete", arg=[picture.element_handle(), before]
        )

    def violations(self):
        """What axe-core finds serious or critical in the outputs of the cells."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page, context={"include": [[".jp-OutputArea"]]}).response["violations"]
        return [
            f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:120]}" for one in found if one["impact"] in SERIOUS
        ]

    def unroll(self):
        """Make the window as high as the notebook: JupyterLab renders only the cells that the window reaches."""
        bottom = "() => document.querySelector('.jp-Notebook .jp-Cell:last-child').getBoundingClientRect().bottom"
        self.page.evaluate("() => { document.querySelector('.jp-WindowedPanel-outer').scrollTop = 0; }")
        for _ in range(3):  # a cell that was not rendered yet has an estimated height
            size = self.page.viewport_size | {"height": min(int(self.page.evaluate(bottom)) + 60, 30_000)}
            self.page.set_viewport_size(size)
            self.settle()

    def look(self, theme, width):
        """Change the theme (Light or Dark) and the width of the window."""
        self.command("apputils:change-theme", theme=f"JupyterLab {theme}")
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")
        self.page.set_viewport_size({"width": width, "height": 900})
        self._look = f"{theme.lower()}-{width}"
        self.settle()

    def cut_off(self):
        """The texts, formulas and widgets that are wider than the room they have, by their first words."""
        too_wide = """parts => parts.filter(part => part.scrollWidth > part.clientWidth + 1)
                                    .map(part => part.textContent.trim().slice(0, 60))"""
        return self.page.locator(ALL_THAT_FITS).evaluate_all(too_wide)

    def screenshot(self, name):
        """Save the whole notebook as it looks now."""
        SCREENSHOTS.mkdir(exist_ok=True)
        self.unroll()
        self.page.screenshot(path=SCREENSHOTS / f"{name}-{self._look}.jpg", type="jpeg", quality=80)
