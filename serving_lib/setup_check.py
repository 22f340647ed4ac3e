"""Whether the packages that are installed are the ones that the workbook was tested with."""

import platform
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

DISTRIBUTION = "serving-workbook"


def check_setup():
    """Print in one line whether the set-up is complete, or one line for each package that needs attention.

    Notes
    -----
    The tested ranges are those of ``pyproject.toml``, read from the metadata of the installed workbook.

    Examples
    --------
    >>> check_setup()
    Set-up complete: 7 packages are within the tested ranges.
    """
    packages = required_packages()
    problems = [problem for package in packages if (problem := problem_of(package))]
    for problem in problems:
        print(problem)
    if not problems:
        print(f"Set-up complete: {len(packages)} packages are within the tested ranges.")


def required_packages():
    """Return the packages that the workbook needs (not the extras for its tests), with their tested ranges.

    Returns
    -------
    list of packaging.requirements.Requirement
    """
    everything = [Requirement(line) for line in requires(DISTRIBUTION) or []]
    return [package for package in everything if package.marker is None]


def problem_of(package):
    """Return what is wrong with an installed package and what to do about it, or None.

    Parameters
    ----------
    package : packaging.requirements.Requirement

    Returns
    -------
    str or None

    Examples
    --------
    >>> problem_of(Requirement("no-such-package>=1"))
    'no-such-package is missing: run make lab, or pip install "no-such-package>=1".'
    """
    mend = f'run make lab, or pip install "{package}".'
    try:
        installed = version(package.name)
    except PackageNotFoundError:
        return f"{package.name} is missing: {mend}"
    if not package.specifier.contains(installed, prereleases=True):
        return f"{package.name} {installed} is not in the tested range, on Python {platform.python_version()}: {mend}"
    return None
