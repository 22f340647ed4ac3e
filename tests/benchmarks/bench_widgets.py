"""What a reader waits for: a redraw in the kernel, a key press in the browser, a whole notebook.

Every control of every explored figure is moved on step by step, from the values at the start, so that what the plot
caches for one value does not help at the next one.
"""

import contextlib
import io
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from serving_lib import paged_continuous_batching, widgets
from tests.benchmarks.row import Row
from tests.notebook_tools import cleared, execute, to_text

REPOSITORY = Path(__file__).parents[2]
NOTEBOOKS = sorted(REPOSITORY.glob("notebooks/*.ipynb"))
MOVES = 9
REDRAW, HOUR_REDRAW = 60, 250  # ms: any figure; one whose slider runs an hour of real traffic
HOUR = {
    "cost_front",
    "formula_and_plans",
    "hour_on_a_plan",
    "own_rules",
    "pool_over_time",
    "prefill_is_not_free",
    "real_arrivals",
    "resident_tokens",
    "rush_hour",
    "slots_and_goodput",
    "token_budget",
    "watermark_tax",
}
PRESSES = 15

INTERACT = """
import ipywidgets, matplotlib
from serving_lib import plots
from serving_lib.widgets import explore
get_ipython().run_line_magic("matplotlib", "inline")

explore(plots.mm1_knee, utilization=(0.05, 0.98))
"""
PLAIN = """
ipywidgets.interact(plots.mm1_knee, utilization=ipywidgets.FloatSlider(0.8, min=0.05, max=0.98, step=0.01),
                    service_time=ipywidgets.fixed(plots.mm1_knee.__defaults__[1]))
"""
# Resolves to the milliseconds from the next key press to the first frame that shows another picture in a cell.
WATCH = """cell => new Promise(done => {
    const image = () => [...cell.querySelectorAll('.jp-OutputArea img')].at(-1);
    const before = image().src;
    const watch = started => {
        const now = image();
        if (now && now.src !== before && now.complete && now.naturalWidth) done(performance.now() - started);
        else requestAnimationFrame(() => watch(started));
    };
    window.addEventListener('keydown', () => watch(performance.now()), { capture: true, once: true });
})"""


def rows():
    """Yield the figures of the widgets and notebooks."""
    for notebook in NOTEBOOKS:
        yield from redraws(notebook)
    yield Row(
        "page_player: one step of 32 pages", page_player_step(), REDRAW, "ms", f"median of {MOVES}, CPU, with PNG"
    )
    yield from key_presses()
    for notebook in NOTEBOOKS:
        yield Row(f"{notebook.stem}: kernel after run all", memory(notebook), 300, "MiB", "resident set size")
    yield Row("nbval, all notebooks", nbval(), 120, "s", "one process, warm disk")


def redraws(notebook):
    """Yield for every `explore` of a notebook the median redraw of the control that takes longest."""
    for panel in explored(notebook):
        taken = {control.label: cpu_milliseconds(moves(panel, control)) for control in panel.controls.values()}
        slowest = max(taken, key=lambda label: statistics.median(taken[label]))
        name = panel.plot.__name__
        note = f"median of {MOVES} moves of {slowest!r}, CPU, with PNG; longest {max(map(max, taken.values())):.0f}"
        bound = HOUR_REDRAW if name in HOUR else REDRAW
        yield Row(f"{notebook.stem}: redraw {name}", statistics.median(taken[slowest]), bound, "ms", note)


def page_player_step():
    """Return the milliseconds of one step of a page player with 32 pages."""
    requests = [{"id": f"r{n}", "prompt_tokens": 9, "new_tokens": 20, "arrival": n} for n in range(MOVES)]
    pool = {"page_size": 4, "total_pages": 32}
    player = widgets.page_player(paged_continuous_batching(requests, **pool, slots=8, max_ticks=99), requests, **pool)

    def step():
        player.step.value += 1

    return statistics.median(cpu_milliseconds(step for _ in range(MOVES)))


def cpu_milliseconds(redraws):
    """Return what each of some redraws takes; it is all computing, so that what else the machine does is not in it."""
    taken = []
    for redraw in redraws:
        started = time.process_time()
        redraw()
        taken.append(1000 * (time.process_time() - started))
    return taken


def explored(notebook):
    """Run the code cells of a notebook in this process and return the panels that `explore` made."""
    panels = []

    def collecting(plot, **controls):
        panels.append(original(plot, **controls))
        return panels[-1]

    original, widgets.explore = widgets.explore, collecting
    try:
        names = {}
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            for cell in nbformat.read(notebook, as_version=4).cells:
                if cell.cell_type == "code":
                    exec(compile(cell.source, notebook.stem, "exec"), names)
    finally:
        widgets.explore = original
    return panels


def moves(panel, control):
    """Put all controls to their start, move one of them a step at a time, and yield the redraw of each step."""
    widget = control.widget
    panel._reset(None)
    for _ in range(MOVES):
        panel._resetting = True  # a move by itself does not redraw
        if hasattr(widget, "step"):
            widget.value = widget.value + widget.step if widget.value + widget.step <= widget.max else widget.min
        elif hasattr(widget, "options"):
            widget.index = (widget.index + 1) % len(widget.options)
        else:
            widget.value = not widget.value
        panel._resetting = False
        yield panel._redraw


def key_presses():
    """Yield the time from key press to new picture in the browser, ours and that of `ipywidgets.interact`."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return
    from tests.browser.lab import CHROMIUM_OPTIONS, Lab, find_chromium

    if (chromium := find_chromium()) is None:
        return
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        lab = Lab(Path(folder))
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(code.strip()) for code in (INTERACT, PLAIN)]
        )
        (lab.root / "compare.ipynb").write_text(to_text(execute(notebook, lab.root)))
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_OPTIONS)
        opened = lab.open(browser, "compare.ipynb")
        opened.run_all()
        cells = opened.page.locator(".jp-CodeCell")
        taken = {0: [], 1: []}
        for press in range(2 * PRESSES + 2):  # in turns, so that a busy machine slows both alike; the first two warm up
            cell = cells.nth(press % 2)
            cell.locator(".noUi-handle").focus()
            waiting = opened.page.evaluate_handle("cell => ({ taken: (" + WATCH + ")(cell) })", cell.element_handle())
            opened.page.keyboard.press("ArrowRight" if press // 2 % 2 else "ArrowLeft")
            milliseconds = waiting.evaluate("waiting => waiting.taken")
            if press >= 2:
                taken[press % 2].append(milliseconds)
            opened.settle()
        browser.close()
        lab.stop()
    ours, theirs = (statistics.median(taken[which]) for which in (0, 1))
    yield Row("key press to picture: explore", ours, None, "ms", f"median of {PRESSES}, in Chromium, 2x pixels")
    yield Row(
        "key press to picture: ipywidgets.interact", theirs, None, "ms", f"median of {PRESSES}, same run, same figure"
    )
    yield Row("key press to picture: explore / interact", ours / theirs, 1, "ratio", "same run")


def memory(notebook):
    """Return the MiB that a kernel holds after all cells of a notebook."""
    source = "import psutil; print(psutil.Process().memory_info().rss / 2**20)"
    copy = cleared(nbformat.read(notebook, as_version=4))
    copy.cells.append(nbformat.v4.new_code_cell(source))
    NotebookClient(copy, kernel_name="python3", resources={"metadata": {"path": str(notebook.parent)}}).execute()
    return float(copy.cells[-1].outputs[-1].text)


def nbval():
    """Return the seconds that the comparison of all cells of all notebooks takes; it must pass."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "-p", "no:cacheprovider", *map(str, NOTEBOOKS)]
    subprocess.run(command, check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started
