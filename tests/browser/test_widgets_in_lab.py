"""The widgets in the real JupyterLab, by mouse and by keyboard, in one notebook that uses them all."""

import nbformat
import pytest

from serving_lib import poisson, write_trace
from tests.notebook_tools import execute, to_text

CELLS = [
    """
import time
import numpy as np
from serving_lib import paged_continuous_batching, ureg
from serving_lib.plots import style
from serving_lib.widgets import explore, page_player, predict, trace_chooser
""",
    """predict("How many?", [1.25, 2, 5], answer=5, because="Arrivals bunch.")""",
    """
def knee(utilization=0.8, service_time=200 * ureg.ms):
    loads = np.linspace(0, 0.98, 99)
    figure, axes = style.new_figure()
    axes.plot(loads, service_time.m_as("ms") / (1 - loads), **style.FORMULA)
    axes.axvline(utilization, **style.CHOSEN)
    axes.set(xlabel="Utilization (busy fraction)", ylabel="Mean time in system (ms)")
    return style.finish(figure, f"At {utilization:.0%} load it is {service_time / (1 - utilization):.0f~P}.")

explore(knee, utilization=(0.05, 0.98), service_time=(50, 500) * ureg.ms)
""",
    """
draws = 0
def slow(level=3, grid=True, kind="a"):
    global draws
    draws += 1
    time.sleep(0.3)
    if level == 1:
        raise ValueError("level must not be 1, got 1")
    figure, axes = style.new_figure(height=2)
    axes.plot([0, level], [0, 1], **style.FORMULA)
    axes.set(xlabel="x (m)", ylabel="y (m)")
    return style.finish(figure, f"Level {level}, kind {kind}, grid {grid}, draw {draws}.")

explore(slow, level=(0, 20), grid=True, kind=["a", "b"])
""",
    """
requests = [{"id": name, "prompt_tokens": 8, "new_tokens": 4, "arrival": 0} for name in "abcde"]
pool = {"page_size": 4, "total_pages": 12}
page_player(paged_continuous_batching(requests, **pool, slots=5, max_ticks=20), requests, **pool)
""",
    """trace_chooser(lambda workload: slow(level=len(workload)))""",
]
PICTURES = 3
SLOW = ".serving-panel:has-text('Level')"


@pytest.fixture(scope="module")
def opened(browser, lab, tmp_path_factory):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source.strip()) for source in CELLS])
    executed = execute(notebook, tmp_path_factory.mktemp("run"))
    (lab.root / "widgets.ipynb").write_text(to_text(executed))
    opened = lab.open(browser, "widgets.ipynb")
    yield opened
    opened.page.context.close()


@pytest.fixture(scope="module")
def running(opened):
    opened.run_all()
    return opened


def sentence_after(page, picture):
    """The text that stands below a picture, in the same output."""
    return page.locator(f".jp-Cell:has({picture}) .serving-sentence")


def test_a_fresh_clone_shows_pictures_and_sentences_before_anything_runs(opened):
    outputs = opened.page.locator(".jp-OutputArea")
    pictures = outputs.locator("img[src^='data:image/png']")
    pictures.nth(PICTURES - 1).wait_for(state="attached")  # JupyterLab renders cells outside the window when idle
    assert pictures.count() == PICTURES
    assert opened.page.locator(".jupyter-widgets").count() == 0
    text = " ".join(outputs.all_inner_texts())
    assert "At 80% load it is 1000 ms." in text
    assert "How many?\n  ( ) 1.25" in text
    assert "widget" not in text.lower()


def test_a_key_press_redraws_into_the_same_image(running):
    page = running.page
    picture = page.locator("img.serving-picture").first
    picture.evaluate("image => { image.mark = 'same'; }")
    before = picture.get_attribute("src")
    page.locator(".noUi-handle").first.press("ArrowRight")
    running.wait_until_changed(picture, before)
    assert picture.evaluate("image => image.mark") == "same"
    assert page.locator("img.serving-picture").count() == PICTURES
    sentence_after(page, "img.serving-picture").filter(has_text="At 81% load it is 1053 ms.").wait_for()


def test_a_picture_is_sharp(running):
    sizes = "image => [image.naturalWidth, image.clientWidth]"
    assert running.page.locator("img.serving-picture").first.evaluate(sizes) == [1400, 700]


def test_while_a_redraw_runs_only_the_newest_value_waits(running):
    page = running.page
    sentence = sentence_after(page, SLOW)
    drawn_before = int(sentence.inner_text().split()[-1].rstrip("."))
    for _ in range(12):
        page.locator(f"{SLOW} .noUi-handle").press("ArrowRight", delay=20)
    page.wait_for_function("text => text.innerText.startsWith('Level 15,')", arg=sentence.element_handle())
    assert int(sentence.inner_text().split()[-1].rstrip(".")) - drawn_before <= 5


def test_an_error_names_its_argument_and_goes_with_the_next_good_value(running):
    page = running.page
    handle, message = page.locator(f"{SLOW} .noUi-handle"), page.locator(f"{SLOW} [aria-live='assertive']")
    handle.press("Home")
    page.wait_for_function(
        "text => text.innerText.startsWith('Level 0,')", arg=sentence_after(page, SLOW).element_handle()
    )
    handle.press("ArrowRight")
    message.wait_for()
    assert message.inner_text().startswith("Not drawn at Level = 1: ValueError: level must not be 1, got 1")
    handle.press("ArrowRight")
    message.wait_for(state="detached")


def test_choices_check_boxes_and_reset_work_from_the_keyboard(running):
    page = running.page
    sentence = sentence_after(page, SLOW)

    def wait_for(text):
        page.wait_for_function(
            "([element, text]) => element.innerText.includes(text)", arg=[sentence.element_handle(), text]
        )

    page.locator(f"{SLOW} select").press("ArrowDown")
    wait_for("kind b")
    page.locator(f"{SLOW} input[type=checkbox]").press("Space")
    wait_for("grid False")
    page.locator(f"{SLOW} button:has-text('Reset')").press("Enter")
    wait_for("Level 3, kind a, grid True")


def test_keys_of_a_control_leave_the_notebook_alone_and_shift_enter_still_runs_a_cell(running):
    page = running.page
    cells, counts = len(running.cells()), [cell["execution_count"] for cell in running.cells()]
    handle = page.locator(f"{SLOW} .noUi-handle")
    for key in ("b", "ArrowDown", "Enter"):  # insert a cell, move to the next one, edit this one
        handle.press(key)
    assert len(running.cells()) == cells
    assert handle.evaluate("handle => handle === document.activeElement")
    page.locator(".serving-panel input[type=radio]").first.focus()
    page.keyboard.press("Shift+Enter")
    page.wait_for_function(
        "count => window.jupyterapp.shell.currentWidget.content.model.toJSON().cells[1].execution_count > count",
        arg=max(counts),
    )


def test_a_prediction_is_committed_from_the_keyboard_and_then_locked(running):
    panel = running.page.locator(".serving-panel:has(input[type=radio])")
    panel.locator("input[type=radio]").nth(1).press("Space")
    panel.locator("button:has-text('Commit'):enabled").press("Enter")
    reveal = panel.locator(".serving-sentence p")
    reveal.wait_for()
    assert reveal.inner_text() == "You said 2; it is 5. Arrivals bunch."
    assert panel.locator("input[type=radio]:enabled").count() == 0


def test_the_page_player_plays_pauses_and_scrubs(running):
    page = running.page
    sentence = sentence_after(page, ".widget-play")
    page.get_by_role("button", name="Play").press("Enter")
    page.wait_for_function("text => text.innerText.startsWith('Step 2:')", arg=sentence.element_handle())
    page.get_by_role("button", name="Pause").press("Enter")
    page.locator(".jp-Cell:has(.widget-play) .noUi-handle").press("Home")
    page.wait_for_function("text => text.innerText.startsWith('Step 0:')", arg=sentence.element_handle())


def choose(page, path):
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose a trace").press("Enter")
    chooser.value.set_files(path)


def test_a_readers_own_trace_is_read_and_a_bad_one_explained(running, tmp_path):
    page = running.page
    write_trace(poisson(rate=2.0, requests=17, prompt_tokens=100, new_tokens=20, seed=1), tmp_path / "mine.csv")
    (tmp_path / "bad.csv").write_text("arrival,prompt_tokens,new_tokens\n0,1,x\n")
    chooser = page.locator(".serving-panel:has-text('Choose a trace')")
    choose(page, tmp_path / "mine.csv")
    chooser.locator("img").wait_for()
    assert "mine.csv: 17 requests" in chooser.inner_text()
    choose(page, tmp_path / "bad.csv")
    chooser.locator("[aria-live='assertive']").wait_for()
    assert "bad.csv, line 2, column 'new_tokens'" in chooser.inner_text()
    assert chooser.locator("img").count() == 0


def test_the_sentence_is_a_live_region_that_stays_while_its_text_changes(running):
    assert running.page.locator(".serving-sentence[aria-live='polite']").count() >= PICTURES


def test_every_picture_has_the_sentence_as_its_alternative_text(running):
    pictures = running.page.locator("img.serving-picture").evaluate_all("images => images.map(image => image.alt)")
    assert all(alternative.endswith(".") for alternative in pictures)


@pytest.mark.parametrize("width", [1280, 800])
@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_nothing_is_cut_off_and_axe_finds_nothing_serious(running, theme, width):
    running.look(theme, width)
    assert running.cut_off() == []
    assert running.violations() == []
    running.screenshot("widgets")


def test_the_console_shows_no_error(running):
    assert running.console_errors == []


def test_a_saved_copy_opens_again_with_its_sliders_and_pictures_and_no_kernel(running, browser, lab):
    running.command("docmanager:save")
    running.command("kernelmenu:shutdown")
    again = lab.open(browser, "widgets.ipynb")
    again.page.locator("img.serving-picture").first.wait_for()
    assert again.page.locator("img.serving-picture").count() >= PICTURES
    assert again.page.locator(".widget-slider").count() > 0
    assert "Error displaying widget" not in again.page.locator(".jp-Notebook").inner_text()
    again.page.context.close()
