"""The one style of every picture: sizes, colors, labels, alt text, and how a figure becomes a PNG or an SVG.

A plot of this package is a pure function from parameters to a `matplotlib.figure.Figure`::

    def knee(*, utilization=0.8):
        figure, axes = style.new_figure(right_margin=1.2)
        axes.plot(x, y, **style.FORMULA)
        axes.set(xlabel="Utilization (busy fraction)", ylabel="Time in system (ms)")
        axes.set_title("The knee", **style.TITLE)
        style.label_line(axes, x, y, "formula", style.FORMULA)
        return style.finish(figure, f"At {100 * utilization:.0f} % load ...")

No pyplot: figures are plain objects that the garbage collector frees, and nothing is drawn twice.
"""

import hashlib
import io
import pickle
import re
import struct
import zlib
from functools import lru_cache
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch, PathPatch
from matplotlib.path import Path
from matplotlib.spines import Spine
from matplotlib.text import Text
from PIL import Image

from serving_lib.plots.renderer import Canvas

WIDTH, HEIGHT = 7.0, 3.8  # inches: 700 by 380 CSS pixels, the text column of a JupyterLab notebook
CSS_DPI = 100
MOST_TICKS = 7  # of an axis that chooses them itself
PIXEL_RATIO = 2  # sharp on today's screens and on a projector

# Ordered by lightness (L* = 13, 34, 48, 61), so that they stay apart in grey print; blue and warm hues alternate, so
# that they stay apart for every kind of color blindness; all have a contrast of 3 to 1 with the white page.
INK = "#14213d"
RED = "#9b2226"
BLUE = "#0e7ab0"
AMBER = "#cc8100"
PALETTE = (INK, RED, BLUE, AMBER)
AMBER_TEXT = "#8a5700"  # letters need more contrast (4.5 to 1) than lines
GREY = "#6b7280"  # secondary text, references and limits; never a series of its own
PALE = "#e5e7eb"  # areas and empty cells
TINTS = ("#c9d3ea", "#f3cfc6", "#bfe3f5", "#f7dfae")  # fills under dark text, in the order of PALETTE

_LINE_STYLES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D")

# What a mark means is the same in every picture of the workbook.
FORMULA = {"color": INK, "linestyle": "-", "linewidth": 2.0}
SIMULATION = {"color": BLUE, "linestyle": "none", "marker": "o", "markersize": 5, "capsize": 3, "elinewidth": 1.3}
TRACE = {"color": RED, "linestyle": "--", "linewidth": 1.8, "marker": "s", "markersize": 5}
CHOSEN = {"color": AMBER, "linestyle": "-", "linewidth": 1.4, "zorder": 1.5}
TITLE = {"loc": "left", "y": 1.02, "fontsize": 10.5, "fontweight": "bold"}  # a fixed height: moving it costs 20 ms
LIMIT = {"color": GREY, "linestyle": (0, (1, 2)), "linewidth": 1.4, "zorder": 1.5}

_RC = {
    "font.family": "DejaVu Sans",  # shipped with Matplotlib, so the same on every platform
    "font.size": 10,
    "axes.labelsize": 10,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": PALE,
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "figure.facecolor": "white",  # opaque: the page behind may be dark
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "hatch.linewidth": 0.8,
}


def series(index):
    """Return the line style of the `index`-th of several equal series: a color, a dash pattern and a marker.

    Parameters
    ----------
    index : int
        From 0. Four series are the most one picture can hold; more raise ``IndexError``.

    Examples
    --------
    >>> series(1)["linestyle"]
    '--'
    """
    return {
        "color": PALETTE[index],
        "linestyle": _LINE_STYLES[index],
        "marker": _MARKERS[index],
        "markersize": 4,
        "linewidth": 1.8,
    }


def fill(index):
    """Return the look of the `index`-th of several filled areas or bars: a tint with a dark edge and its own hatch."""
    return {"facecolor": TINTS[index], "edgecolor": PALETTE[index], "hatch": ("", "///", "...", "xx")[index]}


def new_figure(rows=1, columns=1, *, height=HEIGHT, right_margin=0.25, **subplots):
    """Return a figure of the common width, and its axes.

    Margins are fixed lengths: automatic layouts measure every text twice and cost more than the drawing.

    Parameters
    ----------
    rows, columns : int
        The grid of axes, as in `matplotlib.figure.Figure.subplots`, which takes `subplots` (hashable) as well.
    height : float
        In inches; the width is always 7.
    right_margin : float
        In inches, the room for direct labels at the right of the lines (see `label_line`).

    Returns
    -------
    tuple
        The figure, and one axes or an array of axes.
    """
    figure = pickle.loads(_empty_figure(rows, columns, height, right_margin, tuple(subplots.items())))
    return figure, np.array(figure.axes).reshape(rows, columns).squeeze()[()]


@lru_cache(maxsize=64)
def _empty_figure(rows, columns, height, right_margin, subplots):
    """Return a pickle of the figure with its ticks: Matplotlib makes them one by one, and takes four times as long."""
    left, bottom, top, between = 0.75, 0.55, 0.35, 0.8
    axes_width = (WIDTH - left - right_margin - between * (columns - 1)) / columns
    axes_height = (height - bottom - top - between * (rows - 1)) / rows
    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=(WIDTH, height), dpi=CSS_DPI)
        figure.subplots(rows, columns, **dict(subplots))
        for one in figure.axes:
            one.set_title("", **TITLE)
            one.locator_params(nbins=MOST_TICKS - 1)  # few: quicker to read, and to draw
            one.xaxis.get_major_ticks(MOST_TICKS)
            one.yaxis.get_major_ticks(MOST_TICKS)
            one.xaxis.set_label_coords(0.5, -0.28 / axes_height)
            one.yaxis.set_label_coords(-0.52 / axes_width, 0.5)
    figure.subplots_adjust(
        left=left / WIDTH,
        right=1 - right_margin / WIDTH,
        bottom=bottom / height,
        top=1 - top / height,
        wspace=between / axes_width,
        hspace=between / axes_height,
    )
    return pickle.dumps(figure)


def boxes(axes, left, bottom, width, height, look):
    """Draw rectangles of one look as one artist: each of Matplotlib's bars costs as much as a line, a hatch more.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    left, bottom, width, height : float or array
        One each per rectangle, broadcast together.
    look : dict
        Properties of the patch, as `fill` returns them.
    """
    x, y = np.asarray(left, dtype=float), np.asarray(bottom, dtype=float)
    corners = np.broadcast_arrays(x, y, x, y + height, x + width, y + height, x + width, y, x, y)
    corners = np.stack(corners, axis=-1).reshape(-1, 2)
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * (len(corners) // 5)
    axes.add_patch(PathPatch(Path(corners, codes), **look))


def label_line(axes, x, y, text, look, *, at=-1, offset=(6, 0), **text_properties):
    """Write `text` next to the point `at` of the line (`x`, `y`), in the line's color.

    A direct label spares the reader the way to a legend and back. By default it stands right of the last point: give
    `new_figure` a `right_margin` that holds it.
    """
    color = AMBER_TEXT if look["color"] == AMBER else look["color"]
    properties = {"color": color, "va": "center", "annotation_clip": False} | text_properties
    axes.annotate(text, (x[at], y[at]), xytext=offset, textcoords="offset points", **properties)


def say(value, digits=3):
    """Return a number or a Quantity as a reader says it: `digits` significant, never in exponents when avoidable.

    Examples
    --------
    >>> from serving_lib.units import ureg
    >>> say(1000 * ureg.ms), say(0.98349), say(20_000, 2), say(12345.6, 3), say(5 / ureg.s)
    ('1,000 ms', '0.983', '20,000', '12,300', '5 / s')
    """
    if hasattr(value, "units"):
        number, unit = say(value.magnitude, digits), f"{value.units:~P}"
        return f"{number} {unit.replace('1/', '/ ')}".strip()
    value = float(value)
    if value == 0 or not np.isfinite(value):
        return f"{value:g}".replace("inf", "infinite")
    decimals = digits - 1 - int(np.floor(np.log10(abs(value))))
    if not -12 <= decimals <= 9:
        return f"{value:.{digits - 1}e}"
    text = f"{round(value, decimals):,.{max(decimals, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def finish(figure, alt_text):
    """Check the labels of a figure, give it its sentence, and return it.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Every axis that shows numbers must have a label that ends with its unit in parentheses.
    alt_text : str
        One or two sentences that say what the picture shows, computed from the data that is drawn. Kept as
        ``figure.alt_text``, read by `serving_lib.widgets` and written into the SVG.

    Raises
    ------
    ValueError
        If a label has no unit, or the sentence is not one.
    """
    for axes in figure.axes:
        axes.minorticks_off()  # a logarithmic axis makes dozens, and each costs as much as a label
        for axis in (axes.xaxis, axes.yaxis):
            shows_numbers = axes.axison and axis.get_visible() and axis.get_tick_params().get("labelbottom", True)
            shows_numbers = shows_numbers and axis.get_tick_params().get("labelleft", True)
            if shows_numbers and not unit_of(axis.get_label_text()):
                raise ValueError(
                    f"axis label {axis.get_label_text()!r} must end with its unit in parentheses, "
                    "such as 'Time in system (ms)' or 'Load (busy fraction)'"
                )
    if not alt_text.strip().endswith("."):
        raise ValueError(f"alt_text must be a sentence that ends with a period, got {alt_text!r}")
    figure.alt_text = " ".join(alt_text.split())
    return figure


def unit_of(label):
    """Return the unit in parentheses at the end of an axis label, or an empty string.

    Examples
    --------
    >>> unit_of("Time in system (ms)"), unit_of("Load")
    ('ms', '')
    """
    match = re.search(r"\(([^()]+)\)$", label.strip())
    return match.group(1) if match else ""


def to_png(figure, *, small=False):
    """Return the figure as PNG bytes with two pixels per CSS pixel.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    small : bool
        False is for a picture that the next key press replaces: three times faster. True is for a picture that is
        stored: 256 colors, which is all that these drawings have, and a third of the bytes.
    """
    canvas = Canvas(figure)
    figure.set_dpi(CSS_DPI * PIXEL_RATIO)
    # Hinting fits letters to coarse pixels; at two pixels per CSS pixel it only costs a fifth of the time.
    with matplotlib.rc_context({"text.hinting": "none"}):
        canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())
    figure.set_dpi(CSS_DPI)
    if not small:
        return _encode_png(pixels)
    buffer = io.BytesIO()
    image = Image.fromarray(pixels).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    image.save(buffer, format="png", compress_level=9)
    return buffer.getvalue()


def _encode_png(pixels):
    """Encode RGBA without row filters: on flat colors they gain nothing, and cost most of the time."""
    height, width, channels = pixels.shape
    rows = np.zeros((height, 1 + channels * width), dtype=np.uint8)  # each row starts with its filter type: none
    rows[:, 1:] = pixels.reshape(height, -1)
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows, level=1)),
        (b"IEND", b""),
    ]
    framed = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def to_svg(figure, path):
    """Write the figure to `path` as an SVG that reads the same in every run, with its sentence and its data digest.

    The sentence is the accessible description (``role="img"``, ``title`` and ``desc``); the digest of the drawn data,
    by which a test finds a picture that is out of date, is the Dublin Core identifier of the metadata.
    """
    title = path.stem.replace("_", " ")
    metadata = {
        "Title": title,
        "Description": figure.alt_text,
        "Identifier": f"sha256:{data_digest(figure)}",
        "Creator": "serving_lib.plots",
        "Date": None,
    }
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "path"}):
        figure.savefig(text, format="svg", metadata=metadata)
    svg = text.getvalue()
    description = ElementTree.Element("desc", id="description")
    description.text = figure.alt_text
    svg = svg.replace("<svg ", '<svg role="img" aria-labelledby="title description" ', 1)
    svg = svg.replace("<title>", '<title id="title">', 1)
    svg = svg.replace("</title>", "</title>\n " + ElementTree.tostring(description, encoding="unicode"), 1)
    path.write_text(re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE), encoding="utf-8")


def data_digest(figure):
    """Return a SHA-256 of the data that a figure draws, the same on every platform and version of the libraries.

    Lines, points, areas, bars and images enter in drawing order, rounded to five significant digits; the texts of
    labels and annotations enter as they are. How it is drawn (colors, fonts, sizes) does not enter.
    """
    digest = hashlib.sha256()
    for kind, values in _drawn_data(figure):
        digest.update(f"{kind}: {_rounded(values) if kind != 'text' else values}\n".encode())
    return digest.hexdigest()


def _drawn_data(figure):
    for axes in figure.axes:
        for artist in axes.get_children():
            if artist is axes.patch:
                continue
            if isinstance(artist, Line2D):
                yield "line", artist.get_xydata()
            elif isinstance(artist, Collection):
                yield "points", artist.get_offsets()
                # Sorted and unique: where an outline starts and how it closes is Matplotlib's own business.
                for path in artist.get_paths() if len(artist.get_offsets()) <= 1 else []:
                    yield "area", np.unique(_rounded_array(path.vertices), axis=0)
            elif isinstance(artist, AxesImage):
                yield "image", artist.get_array()
            elif isinstance(artist, Patch) and not isinstance(artist, FancyArrowPatch | FancyBboxPatch | Spine):
                yield "patch", artist.get_patch_transform().transform(artist.get_path().vertices)
            elif isinstance(artist, Text) and artist.get_text():
                yield "text", artist.get_text()
        yield "text", axes.get_xlabel()
        yield "text", axes.get_ylabel()


def _rounded_array(values):
    """Round to five significant digits on a grid that no value lies on the edge of by design.

    Halves, powers of two and short decimals are all common in drawn data and would sit exactly between two rounded
    neighbors, where the last bit of a library's logarithm decides. A shift by an irrational part of a step avoids that.
    """
    values = np.asarray(np.ma.filled(np.ma.asarray(values, dtype=float), np.nan))
    largest = np.max(np.abs(values), axis=0, where=np.isfinite(values), initial=0.0)  # of each coordinate
    negligible = ~(np.abs(values) > 1e-9 * largest)
    exponent = np.floor(np.log10(np.where(negligible | ~np.isfinite(values), 1.0, np.abs(values))))
    step = 10.0 ** (exponent - 4)
    rounded = np.floor(values / step + 0.6180339887) * step
    return np.where(np.isnan(values), np.nan, np.where(negligible, 0.0, np.where(np.isinf(values), values, rounded)))


def _rounded(values):
    rounded = _rounded_array(values)
    return rounded.shape, [f"{value:.4e}" for value in rounded.ravel()]
