"""One browser and one JupyterLab for all browser tests. Without a browser they skip; where ``CI=true`` they fail."""

import os
import shutil

import pytest

from tests.browser.lab import CHROMIUM_OPTIONS, REPOSITORY, Lab, find_chromium


def unavailable(reason):
    """Skip, or fail where a skip would hide that nothing was tested."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"browser tests need {reason}")


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium."""
    if (path := find_chromium()) is None:
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
def lab(browser, tmp_path_factory):  # noqa: ARG001 - first: without a browser, no server starts
    """JupyterLab over a copy of the notebooks."""
    home = tmp_path_factory.mktemp("lab")
    shutil.copytree(REPOSITORY / "notebooks", home / "workbook" / "notebooks", ignore=shutil.ignore_patterns(".*"))
    running = Lab(home)
    yield running
    running.stop()
