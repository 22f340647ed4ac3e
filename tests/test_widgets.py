"""The widgets of a lecture, without a browser: what they show, what they store, what they say when it goes wrong."""

import base64
import gzip
import io
import json
import pickle
from datetime import UTC, datetime
from pathlib import Path

import ipywidgets
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from serving_lib import (
    Policy,
    Server,
    Workload,
    calc_mm1_time_in_system,
    paged_continuous_batching,
    poisson,
    simulate,
    ureg,
    widgets,
    write_trace,
)
from serving_lib.plots import style
from serving_lib.plots.page_table import draw_frame, replay
from serving_lib.widgets import explore, page_player, predict, trace_chooser

GOLDEN = Path(__file__).parent / "golden" / "paged_continuous_batching.json"
VIEW = "application/vnd.jupyter.widget-view+json"


def line(level=3, load=0.5, budget=200 * ureg.ms, kind="a", shown=True):
    """Draw a line.

    Parameters
    ----------
    level : int
        How high it ends.
    load : float
        How far it goes,
        to the right.
    """
    if level == 13:
        raise ValueError(f"level must not be 13, got {level}")
    figure, axes = style.new_figure()
    axes.plot([0, load], [0, level * budget.m_as("s")], visible=shown, **style.FORMULA)
    axes.set(xlabel="x (m)", ylabel="y (s)")
    return style.finish(figure, f"A line of kind {kind} to {level} and {load:.3g}, budget {budget:~P}, shown: {shown}.")


def control(**one):
    """The only control of an explored line, and its widget."""
    (name,) = one
    found = explore(line, **one).controls[name]
    return found, found.widget


# --- explore: which control ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kind", "low", "high", "step", "start"),
    [
        ({"level": (0, 20)}, ipywidgets.IntSlider, 0, 20, 1, 3),
        ({"level": (0, 20, 5)}, ipywidgets.IntSlider, 0, 20, 5, 3),
        ({"load": (0.05, 0.98)}, ipywidgets.FloatSlider, 0.05, 0.98, 0.01, 0.5),
        ({"load": (0, 1)}, ipywidgets.FloatSlider, 0, 1, 0.01, 0.5),
        ({"load": (0.6, 1.0, 0.2)}, ipywidgets.FloatSlider, 0.6, 1.0, 0.2, 0.6),
        ({"budget": (50, 500) * ureg.ms}, ipywidgets.FloatSlider, 50, 500, 5, 200),
        ({"budget": (0.05 * ureg.s, 0.5 * ureg.s)}, ipywidgets.FloatSlider, 50, 500, 5, 200),
    ],
)
def test_a_range_becomes_a_slider_in_the_unit_of_the_parameter(given, kind, low, high, step, start):
    _, widget = control(**given)
    assert type(widget) is kind
    assert (widget.min, widget.max, widget.step, widget.value) == pytest.approx((low, high, step, start))


def test_a_range_over_three_powers_of_ten_becomes_a_logarithmic_slider():
    _, widget = control(load=(0.001, 10.0))
    assert type(widget) is ipywidgets.FloatLogSlider
    assert (widget.min, widget.max, widget.value) == pytest.approx((-3, 1, 0.5))


def test_a_list_becomes_a_choice_that_starts_at_the_default():
    found, widget = control(budget=[0.1 * ureg.s, 0.2 * ureg.s])
    assert type(widget) is ipywidgets.Dropdown
    assert [label for label, _ in widget.options] == ["0.1 s", "0.2 s"]
    assert found.argument == 200 * ureg.ms


def test_true_or_false_becomes_a_check_box():
    found, widget = control(shown=True)
    assert type(widget) is ipywidgets.Checkbox
    assert found.argument is True


def test_another_value_is_held_fixed_and_has_no_control():
    panel = explore(line, level=7, load=(0, 1))
    assert list(panel.controls) == ["load"]
    assert "to 7 and 0.5" in panel.text


def test_labels_name_the_unit_and_tooltips_come_from_the_docstring():
    assert control(budget=(50, 500) * ureg.ms)[1].description == "Budget (ms)"
    assert control(load=(0, 1))[1].tooltip == "How far it goes, to the right."


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"lod": (0, 1)}, TypeError, "line has no parameter lod; it has level, load"),
        ({"load": (1, 0)}, ValueError, "load: the range must go up, got 1 to 0"),
        ({"load": (0,)}, TypeError, r"load must be \(low, high\)"),
        ({"budget": (1, 2)}, ValueError, "budget: the range must have a unit, such as millisecond"),
        ({"load": (1, 2) * ureg.ms}, ValueError, "load: the range must have no unit"),
        ({"budget": (1 * ureg.ms, 2)}, ValueError, "budget: low, high and step must all have a unit"),
    ],
)
def test_a_control_that_cannot_be_is_refused_by_name(given, error, message):
    with pytest.raises(error, match=message):
        explore(line, **given)


# --- explore: what moves ---------------------------------------------------------------------------------------------


def test_a_moved_slider_replaces_the_picture_and_the_sentence_in_place():
    panel = explore(line, level=(0, 20), budget=(50, 500) * ureg.ms)
    children, picture = panel.children, panel.picture
    panel.controls["level"].widget.value = 8
    panel.controls["budget"].widget.value = 300.0
    expected = line(level=8, budget=300 * ureg.ms)
    assert panel.children == children
    assert panel.picture is picture
    assert picture.value == style.to_png(expected)
    assert panel.text == "A line of kind a to 8 and 0.5, budget 300.0 ms, shown: True."
    assert panel.text in panel.sentence.value


def test_reset_returns_every_control_to_its_start_and_draws_once():
    drawn = []

    def counted(level=3, load=0.5):
        drawn.append((level, load))
        return line(level, load)

    panel = explore(counted, level=(0, 20), load=(0, 1))
    panel.controls["level"].widget.value, panel.controls["load"].widget.value = 9, 0.9
    reset = panel.children[0].children[-1]
    drawn.clear()
    reset.click()
    assert drawn == [(3, 0.5)]


def test_an_exception_is_shown_with_the_argument_that_caused_it_until_the_next_good_value():
    panel = explore(line, load=(0, 1), level=(0, 20))
    panel.controls["load"].widget.value = 0.6
    before = panel.picture.value
    panel.controls["level"].widget.value = 13
    assert "Not drawn at Level = 13: ValueError: level must not be 13, got 13" in panel.error.value
    assert panel.picture.value == before
    panel.controls["level"].widget.value = 14
    assert panel.error.value == ""
    assert panel.picture.value != before


def test_an_exception_at_the_start_values_is_raised():
    with pytest.raises(ValueError, match="level must not be 13"):
        explore(line, level=13)


def test_markup_in_a_message_is_shown_and_not_obeyed():
    def broken(level=1):
        if level == 2:
            raise ValueError("<img src=x onerror=alert(1)>")
        return line(level)

    panel = explore(broken, level=(1, 3))
    panel.controls["level"].widget.value = 2
    assert "<img" not in panel.error.value
    assert "&lt;img" in panel.error.value


# --- what the notebook stores ----------------------------------------------------------------------------------------


@pytest.fixture
def shown(monkeypatch):
    """The bundles that a panel displays."""
    bundles = []
    monkeypatch.setattr(widgets, "display", lambda bundle, raw: bundles.append(bundle) or raw)
    return bundles


def test_a_notebook_without_a_kernel_shows_the_default_picture_and_its_sentence(shown):
    panel = explore(line, level=(0, 20))
    panel._ipython_display_()
    picture, sentence = shown
    assert Image.open(io.BytesIO(base64.b64decode(picture["image/png"]))).width == 1400
    assert sentence["text/plain"] == line().alt_text
    assert picture[VIEW]["model_id"] == panel.model_id
    assert sentence[VIEW]["model_id"] == panel.sentence.model_id


def test_a_figure_without_alt_text_is_shown_all_the_same():
    def bare(width=4.0):
        return Figure(figsize=(width, 2))

    assert explore(bare, width=(1, 8)).text == "A picture without a description."


# --- predict ---------------------------------------------------------------------------------------------------------


def question(**changes):
    arguments = {"question": "How many?", "options": [1.25, 2, 5, 20], "answer": 5.0000001} | changes
    return predict(**arguments)


def answered(panel, index):
    panel.choice.index = index
    panel.commit.click()
    return panel.reveal.value


def test_nothing_of_the_answer_is_stored_before_the_reader_commits(shown):
    panel = question(options=["three", "four"], answer="four", because="It is even.")
    panel._ipython_display_()
    (bundle,) = shown
    assert bundle["text/plain"] == "How many?\n  ( ) three\n  ( ) four\nRun this cell to answer."
    assert "It is even" not in str([child.get_state() for child in panel.children])
    assert panel.choice.index is None


def test_the_button_waits_for_a_choice():
    panel = question()
    assert panel.commit.disabled
    panel.choice.index = 0
    assert not panel.commit.disabled


def test_the_reveal_says_what_was_said_and_what_it_is():
    assert "You said 2; it is 5. Because." in answered(question(because="Because."), 1)
    assert "Right: 5." in answered(question(), 2)


def test_an_answer_is_final():
    panel = question()
    answered(panel, 1)
    assert panel.choice.disabled
    assert panel.commit.disabled


def test_quantities_are_compared_in_any_unit():
    panel = question(options=[1 * ureg.s, 2 * ureg.s], answer=calc_mm1_time_in_system(200 * ureg.ms, 0.8))
    assert "Right: 1 s." in answered(panel, 0)


def test_the_answer_is_revealed_in_the_unit_of_its_option():
    panel = question(options=[7 * ureg.ms, 770 * ureg.ms], answer=0.7677 * ureg.TB / (ureg.TB / ureg.s))
    assert "it is 767.7 ms." in answered(panel, 0)


@pytest.mark.parametrize(("options", "agreeing"), [([1, 2], 0), ([5, 5.1], 2)])
def test_a_question_without_exactly_one_right_option_is_refused(options, agreeing):
    with pytest.raises(ValueError, match=f"answer must agree .* agrees with {agreeing} of"):
        question(options=options)


# --- page player -----------------------------------------------------------------------------------------------------

CASES = json.loads(GOLDEN.read_text())
PLAYABLE = [case for case in CASES if case["expect"]["steps"]]
DEADLOCK = [{"id": name, "prompt_tokens": 8, "new_tokens": 4, "arrival": 0} for name in "abcde"]


@pytest.mark.parametrize("case", PLAYABLE, ids=lambda case: case["name"])
def test_the_player_shows_the_pages_of_the_result_at_every_step(case):
    requests, page_size, total_pages, *_ = case["args"]
    frames = replay(case["expect"], requests, page_size, total_pages)
    for frame, step in zip(frames, case["expect"]["steps"], strict=True):
        assert sum(owner is not None for owner in frame.owners) == step["pages"]
        assert (frame.tick, list(frame.decoded)) == (step["tick"], step["decoded"])
    for active in case["expect"]["active"]:
        assert frames[-1].owners.count(active["id"]) == active["pages"]


def test_tokens_fill_all_pages_but_the_last():
    requests = [{"id": "a", "prompt_tokens": 5, "new_tokens": 4, "arrival": 0}]
    result = paged_continuous_batching(requests, page_size=4, total_pages=3, slots=1, max_ticks=9)
    assert [frame.tokens for frame in replay(result, requests, 4, 3)] == [(4, 2, 0), (4, 3, 0), (4, 4, 0), (0, 0, 0)]


def test_a_deadlock_is_said_in_words():
    result = paged_continuous_batching(DEADLOCK, page_size=4, total_pages=10, slots=5, max_ticks=3)
    panel = page_player(result, DEADLOCK, page_size=4, total_pages=10)
    assert panel.text == (
        "Step 0: a, b, c, d, e are admitted; a, b, c, d, e stall for want of a page. 10 of 10 pages are in use."
    )


def test_the_scrubber_shows_the_step_that_it_stands_on():
    result = paged_continuous_batching(DEADLOCK, page_size=4, total_pages=12, slots=5, max_ticks=20)
    panel = page_player(result, DEADLOCK, page_size=4, total_pages=12)
    panel.step.value = 3
    assert panel.text.startswith("Step 3: ")
    assert panel.picture.value == style.to_png(draw_frame(panel.frames[3]))


@pytest.mark.parametrize("seed", range(20))
def test_the_player_follows_an_engine_run_through_its_preemptions(seed):
    rng = np.random.default_rng(seed)
    pool = {"page_size": int(rng.integers(1, 5)), "total_pages": int(rng.integers(8, 24))}
    longest = pool["page_size"] * pool["total_pages"] // 2
    workload = Workload(
        [f"r{number}" for number in range(12)],
        np.sort(rng.integers(0, 10, 12)),
        rng.integers(1, longest, 12),
        rng.integers(1, longest, 12),
    )
    run = simulate(workload, Server(**pool, slots=6), Policy(preemption="recompute"))
    frames = replay(run.window(0, run.steps), workload.requests(), **pool)
    assert len(frames) == run.steps
    assert any("preempted" in frame.words for frame in frames) == (run.preemptions.sum() > 0)
    assert all(owner is None for owner in frames[-1].owners)


def test_a_window_that_starts_later_is_refused():
    workload = Workload(["a"], [0], [4], [8])
    run = simulate(workload, Server(page_size=4, total_pages=8, slots=1))
    with pytest.raises(ValueError, match="must start at step 0, got step 3"):
        page_player(run.window(3, 6), workload.requests(), page_size=4, total_pages=8)


def test_a_result_of_other_requests_or_another_pool_is_refused():
    result = paged_continuous_batching(DEADLOCK, page_size=4, total_pages=12, slots=5, max_ticks=20)
    with pytest.raises(ValueError, match="are these the requests and the pool"):
        page_player(result, DEADLOCK, page_size=8, total_pages=12)
    with pytest.raises(ValueError, match="'e' is none of the requests"):
        page_player(result, DEADLOCK[:4], page_size=4, total_pages=12)
    with pytest.raises(ValueError, match="at least one step"):
        page_player({"steps": []}, DEADLOCK, page_size=4, total_pages=12)


# --- trace chooser ---------------------------------------------------------------------------------------------------


TODAY = datetime(2026, 1, 1, tzinfo=UTC)


def upload(chooser, name, content):
    file = {"name": name, "type": "", "size": len(content), "content": memoryview(content), "last_modified": TODAY}
    chooser.upload.value = (file,)
    return chooser.message.value


@pytest.fixture
def trace(tmp_path):
    """The bytes of a good trace file."""
    path = tmp_path / "mine.csv"
    write_trace(poisson(rate=2.0, requests=50, prompt_tokens=100, new_tokens=20, seed=1), path)
    return path.read_bytes()


def test_a_good_file_becomes_a_workload_and_a_picture(trace):
    chooser = trace_chooser(lambda workload: line(level=len(workload)))
    assert "mine.csv: 50 requests over" in upload(chooser, "mine.csv", trace)
    assert len(chooser.workload) == 50
    assert "to 50" in chooser.children[-1].value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "bad.csv"),
        (b"arrival,prompt_tokens,new_tokens\n0,1,x\n", "bad.csv, line 2, column &#x27;new_tokens&#x27;"),
        (pickle.dumps({"a": 1}), "bad.csv"),
    ],
)
def test_a_bad_file_shows_what_is_wrong_with_it_and_leaves_no_workload(trace, content, message):
    chooser = trace_chooser()
    upload(chooser, "good.csv", trace)
    assert message in upload(chooser, "bad.csv", content)
    assert "Error:" not in chooser.message.value
    assert chooser.workload is None


def test_an_uploaded_pickle_is_never_unpickled():
    class Trap:
        def __reduce__(self):
            return exec, ("raise SystemExit('unpickled')",)

    for name in ("trap.csv", "trap.jsonl", "trap.csv.gz"):
        assert "unpickled" not in upload(trace_chooser(), name, pickle.dumps(Trap()))


def test_a_file_name_cannot_leave_the_temporary_folder(trace):
    assert "mine.csv: 50 requests" in upload(trace_chooser(), "../../mine.csv", trace)


def test_a_file_over_the_limit_is_refused():
    chooser = trace_chooser()
    assert "has 9.0 MiB; the limit is 8 MiB" in upload(chooser, "large.csv", bytes(9 * 2**20))
    assert "unpacked file is over the limit" in upload(chooser, "bomb.csv.gz", gzip.compress(bytes(129 * 2**20), 1))
    assert chooser.workload is None


def test_an_error_of_the_plot_is_shown(trace):
    def broken(_workload):
        raise ZeroDivisionError("no servers")

    assert "ZeroDivisionError: no servers" in upload(trace_chooser(broken), "mine.csv", trace)
