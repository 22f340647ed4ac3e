"""Widgets of the lectures: `explore` a plot with sliders, `predict` before the reveal, play a page pool, load a trace.

All are columns of standard Jupyter widgets, so that they run wherever ipywidgets does. Each also leaves a picture or
a text in the notebook, which a code host, an exported page or an untrusted notebook shows in their place.
"""

import base64
import gc
import gzip
import html
import inspect
import io
import math
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import ipywidgets
import numpy as np
from IPython.display import display

from serving_lib.plots import style
from serving_lib.plots.page_table import draw_frame, replay
from serving_lib.units import ureg
from serving_lib.workload import TraceError, read_trace

# Every redraw leaves a figure to the garbage collector, which now and then goes through all that lives: a pause of a
# sixth of a second under the reader's hand. What is imported by now lives as long as the kernel, and is left out.
gc.freeze()

LARGEST_TRACE = 8 * 2**20  # bytes; Jupyter's connection to the kernel closes on a message of more than 10 MiB
LARGEST_UNPACKED = 128 * 2**20  # bytes; a few MiB of gzip can hold gigabytes of zeros
ABBREVIATIONS = ("GPU", "KV", "SLO", "TTFT", "TPOT", "TBT", "ITL", "MFU", "CV", "SCV")


class Panel(ipywidgets.VBox):
    """A column of widgets that stands in the notebook as a picture and a text where widgets cannot be shown.

    Parameters
    ----------
    children : list of Widget
    text : str
        What the column says, in words.
    picture : ipywidgets.Image, optional
        The picture that the column shows. Then `text` describes it: it stands below the column, as an output of its
        own, since a page that shows the picture in place of the widgets would not show text beside it.
    """

    def __init__(self, children, text, picture=None):
        super().__init__(children)
        self.add_class("serving-panel")
        self.text = text
        self.picture = picture
        self.sentence = _sentence(text) if picture is not None else None

    def describe(self, text):
        """Replace the sentence below the picture."""
        self.text = text
        self.sentence.value = _paragraph_html(text)

    def _repr_mimebundle_(self, **kwargs):
        bundle = super()._repr_mimebundle_(**kwargs)
        if self.picture is None:
            return bundle | {"text/plain": self.text}
        picture = base64.b64encode(self.picture.value).decode("ascii")
        return bundle | {"text/plain": "[picture, described by the next sentence]", "image/png": picture}

    def _ipython_display_(self):
        display(self._repr_mimebundle_(), raw=True)
        if self.sentence is not None:
            display(self.sentence._repr_mimebundle_() | {"text/plain": self.text}, raw=True)


# --- explore ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Control:
    """One widget that sets one parameter of a plot.

    Parameters
    ----------
    label : str
        What the reader sees, with the unit.
    widget : Widget
        Its ``value`` is a plain number in `unit`, or the parameter's value itself.
    unit : pint.Unit or None
    start : object
        The value of the widget at the start, to which a reset returns.
    """

    label: str
    widget: ipywidgets.Widget
    unit: object
    start: object

    @property
    def argument(self):
        """The value for the plot."""
        return self.widget.value if self.unit is None else ureg.Quantity(self.widget.value, self.unit)


def explore(plot, **controls):
    """Show a plot with a control for each of some parameters, and draw it again whenever one of them moves.

    Parameters
    ----------
    plot : callable
        A function of `serving_lib.plots`, or any that returns a `matplotlib.figure.Figure`. Its signature gives the
        start values, its docstring the tooltips; ``figure.alt_text`` is shown under the picture, as live text.
    **controls
        For each parameter that the reader may move: a range as a tuple ``(low, high)`` or ``(low, high, step)``, with
        units if the parameter has them, as ``(50, 500) * ureg.ms`` or ``(50 * ureg.ms, 1 * ureg.s)``; choices as a
        list; True or False for a check box. A single other value is held fixed. Whole numbers at both ends make a
        slider of whole numbers; a range over three powers of ten or more makes a logarithmic one.

    Returns
    -------
    Panel
        Shown as the last value of a notebook cell.

    Raises
    ------
    TypeError
        If the plot has no such parameter, or a control is none of the above.
    ValueError
        If a range is empty or its unit does not fit the parameter.
    Exception
        Whatever the plot raises at its start values.

    Examples
    --------
    >>> from serving_lib import plots
    >>> panel = explore(plots.mm1_knee, utilization=(0.05, 0.98))
    >>> panel.controls["utilization"].label
    'Utilization'
    """
    return Explorer(plot, controls)


class Explorer(Panel):
    """What `explore` returns: the controls, one picture that is replaced, its sentence, and a line for errors."""

    def __init__(self, plot, controls):
        self.plot = plot
        parameters = inspect.signature(plot).parameters
        for name in controls:
            if name not in parameters:
                raise TypeError(f"{plot.__name__} has no parameter {name}; it has {', '.join(parameters)}")
        self.fixed = {name: value for name, value in controls.items() if not _is_movable(value)}
        self.controls = {
            name: _control(name, value, parameters[name].default, _description(plot, name))
            for name, value in controls.items()
            if name not in self.fixed
        }
        figure = plot(**self._arguments())
        super().__init__([], _sentence_of(figure), picture=_picture(figure))
        self.error = ipywidgets.HTML()
        reset = ipywidgets.Button(description="Reset", tooltip="Put every control back to its start", icon="undo")
        reset.on_click(self._reset)
        bar = ipywidgets.Box([control.widget for control in self.controls.values()] + [reset])
        bar.layout = ipywidgets.Layout(flex_flow="row wrap", align_items="center")
        self.children = [bar, self.error, self.picture]
        self._resetting = False
        for name, control in self.controls.items():
            control.widget.observe(lambda _change, name=name: self._redraw(name), names="value")

    def _arguments(self):
        return self.fixed | {name: control.argument for name, control in self.controls.items()}

    def _redraw(self, moved=None):
        """Draw again; the front end sends the next value only when this one is drawn, and then only the newest."""
        if self._resetting:
            return
        try:
            figure = self.plot(**self._arguments())
            self.picture.value = style.to_png(figure)
            self.describe(_sentence_of(figure))
        except Exception as error:  # whatever it is, the reader sees it; a comm handler would hide it in a log
            self._complain(moved, error)
            return
        self.error.value = ""

    def _complain(self, moved, error):
        named = [name for name in self.controls if re.search(rf"\b{name}\b", str(error))]
        blamed = self.controls.get(named[0] if named else moved)
        at = f" at {blamed.label} = {style.say(blamed.argument)}" if blamed else ""
        self.error.value = _error_html(
            f"Not drawn{at}: {type(error).__name__}: {error}. The picture shows the last values that worked."
        )

    def _reset(self, _button):
        self._resetting = True
        for control in self.controls.values():
            control.widget.value = control.start
        self._resetting = False
        self._redraw()


def _is_movable(value):
    return isinstance(value, tuple | list | bool) or (hasattr(value, "units") and np.ndim(value.magnitude) == 1)


def _control(name, value, default, description):
    """Return the control that a range, a list or a bool asks for."""
    if default is inspect.Parameter.empty:
        default = None
    common = {"tooltip": description, "style": {"description_width": "initial"}}
    if isinstance(value, bool):
        label = _label(name)
        start = value if default is None else bool(default)
        return Control(
            label, ipywidgets.Checkbox(start, description=label, indent=False, tooltip=description), None, start
        )
    if isinstance(value, list):
        label = _label(name)
        options = [(choice if isinstance(choice, str) else style.say(choice, 6), choice) for choice in value]
        start = default if any(default == choice for choice in value) else value[0]
        layout = ipywidgets.Layout(width="auto", margin="2px 16px 2px 2px")
        widget = ipywidgets.Dropdown(options=options, value=start, description=label, layout=layout, **common)
        return Control(label, widget, None, start)
    low, high, step, start, unit = _range(name, value, default)
    label = _label(name, unit)
    common |= {"description": label, "layout": ipywidgets.Layout(flex="1 1 330px", max_width="460px")}
    if all(isinstance(number, int) for number in (low, high, step)):
        widget = ipywidgets.IntSlider(round(start), low, high, step, readout_format=",d", **common)
    elif step is None and low > 0 and high / low >= 1000:
        widget = ipywidgets.FloatLogSlider(
            start, base=10, min=math.log10(low), max=math.log10(high), step=0.05, readout_format=".3g", **common
        )
    else:
        step = step or _round_step(high - low)
        decimals = max(0, -math.floor(math.log10(step)))
        widget = ipywidgets.FloatSlider(start, min=low, max=high, step=step, readout_format=f",.{decimals}f", **common)
    return Control(label, widget, unit, widget.value)


def _range(name, value, default):
    """Return low, high, step, start (plain numbers in one unit) and that unit, or None for bare numbers."""
    if hasattr(value, "units"):  # (50, 500) * ureg.ms is one Quantity that holds an array
        value = tuple(ureg.Quantity(number.item(), value.units) for number in value.magnitude)
    if len(value) not in (2, 3):
        raise TypeError(f"{name} must be (low, high) or (low, high, step), got {value}")
    with_units = [number for number in value if hasattr(number, "units")]
    if with_units and len(with_units) < len(value):
        raise ValueError(f"{name}: low, high and step must all have a unit, or none; got {value}")
    if hasattr(default, "units") != bool(with_units) and default is not None:
        needs = f"a unit, such as {default.units}" if hasattr(default, "units") else "no unit"
        raise ValueError(f"{name}: the range must have {needs}, as the parameter has; got {value}")
    unit = None
    if with_units:
        unit = default.units if default is not None else value[0].units
        value = tuple(number.to(unit).magnitude for number in value)
        default = None if default is None else default.magnitude
    low, high, step = (*value, None)[:3]
    if not low < high:
        raise ValueError(f"{name}: the range must go up, got {low} to {high}")
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in (low, high))
    if step is None and whole and (unit is None) and isinstance(default, int | None):
        step = 1
    start = low if default is None else min(max(default, low), high)
    return low, high, step, start, unit


def _round_step(span):
    """Return 1, 2 or 5 times a power of ten that divides a span into some 60 to 150 steps."""
    step = 10.0 ** math.floor(math.log10(span / 60))
    return next(factor * step for factor in (5, 2, 1) if factor * step <= span / 60)


def _label(name, unit=None):
    words = [word.upper() if word.upper() in ABBREVIATIONS else word for word in name.split("_")]
    text = " ".join(words)
    text = text[0].upper() + text[1:]
    return f"{text} ({unit:~P})" if unit is not None and f"{unit:~P}" else text


def _description(plot, name):
    """Return what the docstring of a plot says of a parameter, or None."""
    match = re.search(rf"^ *{name} : .*\n((?: {{5,}}.*\n)+)", inspect.getdoc(plot) or "", re.MULTILINE)
    match = match or re.search(rf"^{name} : .*\n((?: +.*(?:\n|$))+)", inspect.getdoc(plot) or "", re.MULTILINE)
    return " ".join(match.group(1).split()) if match else None


# --- predict ---------------------------------------------------------------------------------------------------------


def predict(question, options, answer, because=""):
    """Ask the reader to commit to an answer before it is revealed.

    Parameters
    ----------
    question : str
    options : list
        Numbers, Quantities or strings, of which one is right.
    answer : float, Quantity or str
        The computed answer. The option within 5 % of it is the right one, so that options may be round numbers.
    because : str
        One sentence that is shown with the answer.

    Returns
    -------
    Panel
        Untouched, it holds the question and the options and nothing of the answer.

    Raises
    ------
    ValueError
        If not exactly one option agrees with the answer.

    Examples
    --------
    >>> panel = predict("At 80 % busy, how many service times does a request take?", [1.25, 2, 5, 20], answer=5.0)
    >>> print(panel.text)
    At 80 % busy, how many service times does a request take?
      ( ) 1.25
      ( ) 2
      ( ) 5
      ( ) 20
    Run this cell to answer.
    """
    return Prediction(question, options, answer, because)


class Prediction(Panel):
    """What `predict` returns: the question, the options, a button that locks the choice, and the reveal."""

    def __init__(self, question, options, answer, because):
        right = [index for index, option in enumerate(options) if _agrees(option, answer)]
        if len(right) != 1:
            shown = ", ".join(_words(option) for option in options)
            raise ValueError(
                f"answer must agree within 5 % with exactly one option; {_words(answer)} agrees with "
                f"{len(right)} of {shown}"
            )
        labels = [_words(option) for option in options]
        lines = [question, *(f"  ( ) {label}" for label in labels), "Run this cell to answer."]
        super().__init__([], "\n".join(lines))
        self._because, self._right = because, right[0]
        self._answer = _words(answer.to(options[right[0]].units) if hasattr(answer, "units") else answer)
        self.choice = ipywidgets.RadioButtons(options=labels, index=None)
        self.choice.layout.width = "auto"
        self.commit = ipywidgets.Button(
            description="Commit", disabled=True, tooltip="Lock your answer and see the computed one"
        )
        self.reveal = _sentence("")
        self.choice.observe(self._allow_commit, names="index")
        self.commit.on_click(self._reveal)
        self.children = [ipywidgets.HTML(_paragraph_html(question)), self.choice, self.commit, self.reveal]

    def _allow_commit(self, change):
        self.commit.disabled = change["new"] is None

    def _reveal(self, _button):
        self.choice.disabled = self.commit.disabled = True
        chosen = self.choice.value
        if self.choice.index == self._right:
            verdict = f"Right: {self._answer}."
        else:
            verdict = f"You said {chosen}; it is {self._answer}."
        self.reveal.value = _paragraph_html(f"{verdict} {self._because}".strip())


def _agrees(option, answer):
    if isinstance(option, str) or isinstance(answer, str):
        return option == answer
    if hasattr(answer, "units"):
        return abs(option - answer) <= 0.05 * abs(answer)
    return math.isclose(float(option), float(answer), rel_tol=0.05, abs_tol=1e-12)


def _words(value):
    return value if isinstance(value, str) else style.say(value, 4)


# --- page player -----------------------------------------------------------------------------------------------------


def page_player(result, requests, page_size, total_pages):
    """Play the page pool of a simulation step by step: who owns which page, who waits, who stalls, and why.

    Parameters
    ----------
    result : dict or list of dict
        What `serving_lib.paged_continuous_batching` returned, or the steps of an engine run from its first one, as
        ``run.window(0, run.steps)``.
    requests : iterable of dict
        The requests that it was given.
    page_size, total_pages : int
        The pool that it was given.

    Returns
    -------
    Panel
        A picture of the pool with play, pause and a scrubber.

    Raises
    ------
    ValueError
        If the result is not one of these requests and this pool.

    Examples
    --------
    >>> from serving_lib import paged_continuous_batching
    >>> requests = [{"id": "a", "prompt_tokens": 3, "new_tokens": 4, "arrival": 0}]
    >>> pool = {"page_size": 4, "total_pages": 4}
    >>> result = paged_continuous_batching(requests, **pool, slots=2, max_ticks=9)
    >>> page_player(result, requests, **pool).text
    'Step 0: a is admitted; a decodes. 1 of 4 pages are in use.'
    """
    return Player(replay(result, requests, page_size, total_pages))


class Player(Panel):
    """What `page_player` returns: the picture of one step, and the controls that choose the step."""

    def __init__(self, frames):
        self.frames = frames
        figure = draw_frame(frames[0])
        super().__init__([], figure.alt_text, picture=_picture(figure))
        last = len(frames) - 1
        self.play = ipywidgets.Play(value=0, min=0, max=last, interval=800, tooltip="Play the steps")
        self.step = ipywidgets.IntSlider(0, 0, last, description="Step", tooltip="The step that is shown")
        self.step.layout = ipywidgets.Layout(flex="1 1 330px")
        ipywidgets.jslink((self.play, "value"), (self.step, "value"))
        self.step.observe(self._show, names="value")
        self.children = [ipywidgets.HBox([self.play, self.step]), self.picture]

    def _show(self, change):
        figure = draw_frame(self.frames[change["new"]])
        self.picture.value = style.to_png(figure)
        self.describe(figure.alt_text)


# --- trace chooser ---------------------------------------------------------------------------------------------------


def trace_chooser(plot=None):
    """Let the reader choose a trace file of their own.

    The file is parsed as text and never executed or unpickled; it stays on the machine of the kernel.

    Parameters
    ----------
    plot : callable, optional
        ``plot(workload)`` gives a figure, which is drawn for each file that can be read.

    Returns
    -------
    Panel
        Its ``workload`` is None until a file has been read.

    Examples
    --------
    >>> trace_chooser().text
    'Run this cell to choose a trace file of your own (CSV or JSON lines, plain or gzip, at most 8 MiB).'
    """
    return TraceChooser(plot)


class TraceChooser(Panel):
    """What `trace_chooser` returns: a file button, what the file holds or what is wrong with it, and the plot."""

    def __init__(self, plot):
        limit = f"CSV or JSON lines, plain or gzip, at most {LARGEST_TRACE // 2**20} MiB"
        super().__init__([], f"Run this cell to choose a trace file of your own ({limit}).")
        self.plot, self.workload = plot, None
        self.upload = ipywidgets.FileUpload(
            accept=".csv,.jsonl,.gz", description="Choose a trace", tooltip=f"A trace file: {limit}"
        )
        self.upload.layout.width = "max-content"
        self.message = _sentence(f"A trace file: {limit}.")
        self.upload.observe(self._read, names="value")
        self.children = [self.upload, self.message]

    def _read(self, change):
        if not change["new"]:
            return
        file = change["new"][0]
        self.workload = None
        self.children = [self.upload, self.message]
        try:
            self.workload = _read_uploaded(file["name"], bytes(file["content"]))
            self.message.value = _paragraph_html(_summary(file["name"], self.workload))
            if self.plot is not None:
                figure = self.plot(self.workload)
                self.children = [self.upload, self.message, _picture(figure), _sentence(_sentence_of(figure))]
        except Exception as error:  # the reader sees it; a comm handler would hide it in a log
            kind = "" if isinstance(error, TraceError) else f"{type(error).__name__}: "
            self.message.value = _error_html(f"{kind}{error}")


def _read_uploaded(name, content):
    """Parse an uploaded file; its errors call it by its own name, not by that of a temporary copy."""
    name = Path(name).name
    try:
        _check_size(name, content)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(content)
            return read_trace(path)
    except TraceError as error:
        error.path = name
        raise


def _check_size(name, content):
    mend = "Keep the columns and the hours that matter, or compress it with gzip"
    if len(content) > LARGEST_TRACE:
        size, limit = len(content) / 2**20, LARGEST_TRACE / 2**20
        raise TraceError(f"the file has {size:.1f} MiB; the limit is {limit:.0f} MiB", mend)
    if name.endswith(".gz"):
        try:
            with gzip.open(io.BytesIO(content)) as file:
                too_large = len(file.read(LARGEST_UNPACKED + 1)) > LARGEST_UNPACKED
        except (OSError, EOFError):
            return  # not a gzip file after all: the reader says so, better
        if too_large:
            raise TraceError(f"the unpacked file is over the limit of {LARGEST_UNPACKED // 2**20} MiB", mend)


def _summary(name, workload):
    minutes = (workload.arrival[-1] - workload.arrival[0]) / 60
    prompt, new = workload.prompt_tokens.mean(), workload.new_tokens.mean()
    return (
        f"{name}: {len(workload):,} requests over {style.say(minutes)} minutes; "
        f"on average {style.say(prompt)} prompt tokens and {style.say(new)} new tokens."
    )


# --- pieces ----------------------------------------------------------------------------------------------------------


def _picture(figure):
    """Return the image widget of a figure: 700 CSS pixels where there is room, the width of the column elsewhere."""
    picture = ipywidgets.Image(value=style.to_png(figure, small=True), format="png")
    picture.width = str(round(figure.get_figwidth() * style.CSS_DPI))
    picture.layout = ipywidgets.Layout(max_width="calc(100% - 4px)", height="auto", object_fit="contain")
    picture.add_class("serving-picture")
    return picture


def _sentence_of(figure):
    return getattr(figure, "alt_text", "") or "A picture without a description."


def _sentence(text):
    """Return a text that a screen reader says again when it changes."""
    widget = ipywidgets.HTML(_paragraph_html(text))
    widget.add_class("serving-sentence")
    return widget


def _paragraph_html(text):
    return f'<p aria-live="polite" style="line-height: 1.4">{html.escape(text)}</p>' if text else ""


def _error_html(text):
    # The dark theme's red alone is too dark to read, so it is mixed with the color of text, whatever the theme.
    color = "color-mix(in srgb, var(--jp-error-color0, #b71c1c) 60%, var(--jp-ui-font-color0, black))"
    style_of_error = f"color: {color}; line-height: 1.4"
    return f'<p aria-live="assertive" style="{style_of_error}"><b>{html.escape(text)}</b></p>'
