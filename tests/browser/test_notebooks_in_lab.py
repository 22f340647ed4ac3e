"""Every notebook of the workbook in the real JupyterLab: opened by a newcomer, then run and used."""

import base64
import json
import re
import struct

import pytest

from tests.browser.lab import REPOSITORY

NOTEBOOKS = sorted(path.stem for path in REPOSITORY.glob("notebooks/*.ipynb"))
EXPLORER = ".serving-panel:has(button:has-text('Reset'))"
CONTROL = ".noUi-handle, select, input[type=checkbox]"


@pytest.fixture(scope="module", params=NOTEBOOKS)
def opened(request, browser, lab):
    opened = lab.open(browser, f"notebooks/{request.param}.ipynb")
    opened.name, opened.file = request.param, lab.root / "notebooks" / f"{request.param}.ipynb"
    yield opened
    opened.page.context.close()


@pytest.fixture(scope="module")
def running(opened):
    opened.run_all()
    return opened


def stored_pictures(file):
    """Width in pixels of each picture that a notebook's file holds."""
    cells = json.loads(file.read_text())["cells"]
    bundles = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    pictures = ["".join(bundle["image/png"]) for bundle in bundles if "image/png" in bundle]
    return [struct.unpack(">I", base64.b64decode(picture)[16:20])[0] for picture in pictures]


def test_a_fresh_clone_opens_without_a_dialog_and_shows_every_picture_before_anything_runs(opened):
    page = opened.page
    assert page.locator(".jp-Dialog").count() == 0
    stored, images = stored_pictures(opened.file), ".jp-OutputArea img"
    opened.unroll()
    page.wait_for_function(f"count => document.querySelectorAll('{images}').length >= count", arg=len(stored))
    assert page.locator(images).evaluate_all("images => images.map(image => image.naturalWidth)") == stored
    assert "Error displaying widget" not in page.locator(".jp-Notebook").inner_text()


def test_all_cells_run_without_an_error(running):
    outputs = [output for cell in running.cells() for output in cell.get("outputs", [])]
    assert [output.get("evalue") for output in outputs if output["output_type"] == "error"] == []
    assert [cell["source"] for cell in running.cells() if cell.get("execution_count", 1) is None] == []


def test_every_explore_redraws_on_a_key_press(running):
    panels = running.page.locator(EXPLORER)
    for index in range(panels.count()):
        panel = panels.nth(index)
        picture, control = panel.locator("img.serving-picture"), panel.locator(CONTROL).first
        before = picture.get_attribute("src")
        control.press(key_that_changes(control))
        running.wait_until_changed(picture, before)
        assert panel.locator("[aria-live='assertive']").count() == 0


def key_that_changes(control):
    """The key that moves a slider or a choice away from its end, or toggles a check box."""
    return control.evaluate("""control => {
        if (control.type === 'checkbox') return 'Space';
        if (control.tagName === 'SELECT')
            return control.selectedIndex === control.options.length - 1 ? 'ArrowUp' : 'ArrowDown';
        return control.ariaValueNow === control.ariaValueMax ? 'ArrowLeft' : 'ArrowRight';
    }""")


def test_every_prediction_reveals_its_answer(running):
    panels = running.page.locator(".serving-panel:has(input[type=radio])")
    for index in range(panels.count()):
        panel = panels.nth(index)
        panel.locator("input[type=radio]").first.press("Space")
        panel.locator("button:has-text('Commit'):enabled").press("Enter")
        panel.locator(".serving-sentence p").wait_for()
        assert re.match(r"(You said|Right: ).+", panel.locator(".serving-sentence").inner_text())


def test_every_untouched_exercise_says_that_it_is_not_attempted(running):
    for cell in running.cells():
        for key in re.findall(r"^check\(\"(\w+\.\d+)\"", cell["source"], re.MULTILINE):
            shown = json.dumps(cell["outputs"])
            assert key in shown
            assert "not attempted" in shown


def test_every_page_player_plays(running):
    panels = running.page.locator(".serving-panel:has(.widget-play)")
    for index in range(panels.count()):
        panel = panels.nth(index)
        picture = panel.locator("img.serving-picture")
        before = picture.get_attribute("src")
        panel.locator("button[aria-label='Play']").press("Enter")
        running.wait_until_changed(picture, before)
        panel.locator("button[aria-label='Pause']").press("Enter")


def test_wide_in_the_light_theme(running):
    running.look("Light", 1280)
    running.screenshot(running.name)


def test_narrow_in_the_dark_theme_nothing_is_cut_off_and_axe_finds_nothing_serious(running):
    running.look("Dark", 800)
    assert running.cut_off() == []
    assert running.violations() == []
    running.screenshot(running.name)


def test_the_console_shows_no_error(running):
    assert running.console_errors == []
