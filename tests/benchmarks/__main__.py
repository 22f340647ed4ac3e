"""Print one table of all benchmarks: ``python -m tests.benchmarks``, or of some: ``python -m tests.benchmarks queue``.

Every ``bench_*.py`` beside this file has a function ``rows()`` that yields `Row`s. Where a bound compares two programs,
both run in the same process on the same input, so that the ratio holds on any machine.
"""

import argparse
import importlib
import platform
import sys
from pathlib import Path

from serving_lib.plots.style import say

HEADER = ("benchmark", "measured", "required", "", "how")


def main(arguments=None):
    found = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(found)} (default: all)")
    names = parser.parse_args(arguments).names or found
    if unknown := sorted(set(names) - set(found)):
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are: {', '.join(found)}")
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}\n")
    print(_line(HEADER))
    missed = 0
    for name in names:
        for row in importlib.import_module(f"tests.benchmarks.bench_{name}").rows():
            bound = "" if row.required is None else f"{'≥' if row.at_least else '≤'} {say(row.required)} {row.unit}"
            print(_line((row.name, f"{say(row.measured)} {row.unit}", bound, row.verdict, row.note)), flush=True)
            missed += row.verdict == "MISSED"
    print(f"\n{missed} missed" if missed else "\nall met")
    return int(missed > 0)


def _line(cells):
    name, measured, required, verdict, how = cells
    return f"{name:<58} {measured:>16} {required:>16}  {verdict:<6}  {how}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
