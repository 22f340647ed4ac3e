"""What a picture shows, read back from Matplotlib as numbers."""

from matplotlib.patches import PathPatch


def boxes(axes):
    """The rectangles of each look (see `style.boxes`), in drawing order: arrays of left, right, bottom and top."""
    corners = [patch.get_path().vertices.reshape(-1, 5, 2) for patch in axes.patches if isinstance(patch, PathPatch)]
    return [[one[:, 0, 0], one[:, 2, 0], one[:, 0, 1], one[:, 2, 1]] for one in corners]
