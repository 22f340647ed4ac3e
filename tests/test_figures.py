"""Every plot keeps the style, says in words what it shows, and agrees with the SVG that is committed for it."""

import io
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from serving_lib import plots
from serving_lib.plots import style

FIGURES = Path(__file__).parents[1] / "figures"
SVG = "{http://www.w3.org/2000/svg}"
IDENTIFIER = "{http://purl.org/dc/elements/1.1/}identifier"
each_plot = pytest.mark.parametrize("name", plots.__all__)


@pytest.fixture(scope="module")
def drawn():
    """Each plot at its defaults, drawn once for all tests."""
    return {name: getattr(plots, name)() for name in plots.__all__}


@each_plot
def test_the_committed_svg_shows_the_data_that_the_plot_draws(drawn, name):
    svg = ElementTree.parse(FIGURES / f"{name}.svg")
    assert svg.find(f".//{IDENTIFIER}").text == f"sha256:{style.data_digest(drawn[name])}", "run: make figures"


@each_plot
def test_the_committed_svg_tells_a_screen_reader_what_it_shows(drawn, name):
    root = ElementTree.parse(FIGURES / f"{name}.svg").getroot()
    assert root.get("role") == "img"
    assert root.find(f"{SVG}desc").text == drawn[name].alt_text


def test_every_committed_svg_belongs_to_a_plot():
    assert sorted(path.stem for path in FIGURES.glob("*.svg")) == sorted(plots.__all__)


@each_plot
def test_every_axis_that_shows_numbers_names_its_unit(drawn, name):
    for axes in filter(lambda axes: axes.axison, drawn[name].axes):
        for axis in (axes.xaxis, axes.yaxis):
            if any(tick.label1.get_visible() or tick.label2.get_visible() for tick in axis.get_major_ticks()):
                assert style.unit_of(axis.get_label_text()), axis.get_label_text()


@each_plot
def test_a_plot_draws_the_same_data_every_time(drawn, name):
    assert style.data_digest(getattr(plots, name)()) == style.data_digest(drawn[name])


@each_plot
def test_a_picture_has_two_pixels_per_css_pixel_and_an_opaque_white_page(drawn, name):
    pixels = np.asarray(Image.open(io.BytesIO(style.to_png(drawn[name]))))
    assert pixels.shape[1] == 2 * 700
    assert (pixels[:, :, 3] == 255).all()
    assert (pixels[[0, 0, -1, -1], [0, -1, 0, -1]] == 255).all()


@each_plot
def test_nothing_of_a_picture_is_cut_off_at_its_edges(drawn, name):
    canvas = FigureCanvasAgg(drawn[name])
    canvas.draw()
    drawn_on, (width, height) = drawn[name].get_tightbbox(canvas.get_renderer()), drawn[name].get_size_inches()
    assert min(drawn_on.x0, drawn_on.y0) >= 0
    assert (drawn_on.x1 <= width, drawn_on.y1 <= height) == (True, True)


def test_plots_never_import_pyplot():
    code = "import sys; from serving_lib import plots; [getattr(plots, n)() for n in plots.__all__]"
    code += "; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_finish_refuses_an_axis_without_a_unit():
    figure, axes = style.new_figure()
    axes.set(xlabel="Load", ylabel="Time (ms)")
    with pytest.raises(ValueError, match="'Load' must end with its unit"):
        style.finish(figure, "A line.")


def test_finish_refuses_a_picture_without_a_sentence():
    figure, axes = style.new_figure()
    axes.set(xlabel="Load (fraction)", ylabel="Time (ms)")
    with pytest.raises(ValueError, match="alt_text must be a sentence"):
        style.finish(figure, "")


# --- the digest ------------------------------------------------------------------------------------------------------


def picture_of(x, y, look=style.FORMULA):
    figure, axes = style.new_figure()
    axes.plot(x, y, **look)
    axes.fill_between(x, 0, y)
    axes.bar(x, y, width=0.1)
    axes.scatter(x, y)
    axes.set(xlabel="Load (fraction)", ylabel="Time (ms)")
    return style.finish(figure, "A line.")


X = np.linspace(0, 1, 41)
CURVES = {
    "short decimals": np.round(X, 3),
    "halves": np.floor(X * 10) / 2,
    "powers of two": 2.0 ** -np.arange(41),
    "powers of ten": 10.0 ** -np.arange(41),
    "negative": -np.exp(X),
    "with a zero that is not quite": np.cos(np.pi / 2 * np.arange(41)),
}


@pytest.mark.parametrize("y", CURVES.values(), ids=CURVES)
def test_the_last_bits_of_a_value_do_not_change_the_digest(y):
    ulps = np.random.default_rng(0).integers(-4, 5, y.shape)
    digest = style.data_digest(picture_of(X, y))
    assert style.data_digest(picture_of(X, y * (1 + ulps * np.finfo(float).eps))) == digest


@pytest.mark.parametrize("y", CURVES.values(), ids=CURVES)
def test_a_value_that_changes_by_a_thousandth_changes_the_digest(y):
    moved = y.copy()
    moved[np.argmax(np.abs(y))] *= 1.001
    assert style.data_digest(picture_of(X, moved)) != style.data_digest(picture_of(X, y))


def test_a_change_on_a_small_axis_is_seen_beside_a_large_one():
    small = np.full(41, 1e-6)
    assert style.data_digest(picture_of(1e9 * X, small)) != style.data_digest(picture_of(1e9 * X, 1.001 * small))


def test_how_a_line_looks_does_not_change_the_digest():
    assert style.data_digest(picture_of(X, X, style.series(1))) == style.data_digest(picture_of(X, X, style.series(2)))


def test_an_svg_is_the_same_bytes_in_every_run(tmp_path):
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        style.to_svg(picture_of(X, X), tmp_path / folder / "line.svg")
    assert (tmp_path / "first" / "line.svg").read_bytes() == (tmp_path / "second" / "line.svg").read_bytes()


def drawn_by_matplotlib(figure):
    FigureCanvasAgg(figure)
    reference = io.BytesIO()
    with matplotlib.rc_context({"text.hinting": "none"}):
        figure.savefig(reference, format="png", dpi=200)
    return np.asarray(Image.open(reference).convert("RGB")).astype(int)


@pytest.mark.parametrize(("small", "tolerance"), [(False, 0), (True, 16)])
def test_a_png_holds_the_pixels_that_were_drawn(small, tolerance):
    figure = picture_of(X, X)
    axes = figure.axes[0]
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()):
        text.set_visible(False)
    encoded = np.asarray(Image.open(io.BytesIO(style.to_png(figure, small=small))).convert("RGB")).astype(int)
    assert (np.abs(encoded - drawn_by_matplotlib(figure)).max(axis=2) > tolerance).mean() <= 1e-3 * small


@pytest.mark.parametrize("angle", [0, 30, 90, -45, 180])
@pytest.mark.parametrize("words", ["gap ρ fly, 12", "$\\frac{S}{1 - \\rho}$", " "])
def test_remembered_words_stand_where_matplotlib_puts_them(words, angle):
    figure, axes = style.new_figure()
    axes.axis("off")
    axes.text(0.5, 0.5, words, rotation=angle, color=style.RED, fontsize=14)
    style.to_png(figure)
    encoded = np.asarray(Image.open(io.BytesIO(style.to_png(figure))).convert("RGB")).astype(int)
    expected = drawn_by_matplotlib(figure)
    for axis in (0, 1):  # the centers of the ink agree within a pixel, and so does its amount
        ink, expected_ink = ((765 - picture.sum(axis=2)).sum(axis=axis) for picture in (encoded, expected))
        assert ink.sum() == pytest.approx(expected_ink.sum(), rel=0.05)
        if expected_ink.any():
            place = np.arange(len(ink))
            assert np.average(place, weights=ink) == pytest.approx(np.average(place, weights=expected_ink), abs=1)


# --- the palette -----------------------------------------------------------------------------------------------------

# Machado, Oliveira and Fernandes (2009), A Physiologically-based Model for Simulation of Color Vision Deficiency,
# severity 1, on linear RGB.
VISIONS = {
    "full color": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])


def linear(color):
    channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast_with_white(color):
    return 1.05 / (LUMINANCE @ linear(color) + 0.05)


def lab(rgb):
    """CIE L*a*b* of linear RGB under D65."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISIONS)
def test_the_colors_stay_apart_for_every_kind_of_color_vision(vision):
    seen = [lab(np.asarray(VISIONS[vision]) @ linear(color)) for color in style.PALETTE]
    assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > 25  # 2.3 is just noticeable


def test_the_colors_stay_apart_in_grey_print():
    lightness = sorted(lab(linear(color))[0] for color in style.PALETTE)
    assert min(np.diff(lightness)) > 10


def test_lines_have_the_contrast_of_graphics_and_letters_that_of_text():
    assert min(map(contrast_with_white, style.PALETTE)) >= 3
    assert min(map(contrast_with_white, (style.INK, style.RED, style.BLUE, style.AMBER_TEXT, style.GREY))) >= 4.5


def test_equal_series_differ_in_dash_and_marker_as_well_as_in_color():
    looks = [style.series(index) for index in range(4)]
    for key in ("color", "linestyle", "marker"):
        assert len({look[key] for look in looks}) == 4
    with pytest.raises(IndexError):
        style.series(4)
