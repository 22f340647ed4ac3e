"""Draw every plot at its defaults: ``python -m serving_lib.plots figures/``."""

import argparse
from pathlib import Path

from serving_lib import plots
from serving_lib.plots import style


def main():
    """Read the command line and write one SVG per plot."""
    parser = argparse.ArgumentParser(prog="python -m serving_lib.plots", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the SVG files go; it is made if it does not exist")
    parser.add_argument("names", nargs="*", help="only these plots (default: all)")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(plots.__all__)
    if unknown:
        parser.error(f"no plot is called {', '.join(sorted(unknown))}; there are: {', '.join(plots.__all__)}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or plots.__all__:
        path = arguments.folder / f"{name}.svg"
        style.to_svg(getattr(plots, name)(), path)
        print(path)


if __name__ == "__main__":
    main()
