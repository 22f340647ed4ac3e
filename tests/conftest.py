"""Fixtures that several test files share."""

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data():
    """Folder of the real request traces, which are not part of the repository."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the real traces are not here: put them in ../shared/data, next to the repository")
    return SHARED_DATA
