"""The formula sheet prints on one page of either paper, as JupyterLab's File > Print does."""

import re

import nbformat
import pytest
from nbconvert import HTMLExporter

from tests.browser.lab import REPOSITORY


@pytest.mark.parametrize("paper", ["A4", "Letter"])
def test_the_formula_sheet_prints_on_one_page(browser, tmp_path, paper):
    notebook = nbformat.read(REPOSITORY / "notebooks" / "99_formula_sheet.ipynb", as_version=4)
    body, _ = HTMLExporter().from_notebook_node(notebook)
    file = tmp_path / "sheet.html"
    file.write_text(body, encoding="utf-8")
    page = browser.new_page()
    page.route("http*://**", lambda route: route.abort())  # MathJax and RequireJS, which the sheet does not need
    page.goto(file.as_uri())
    printed = page.pdf(format=paper, landscape=True, prefer_css_page_size=False, margin=dict.fromkeys(SIDES, "8mm"))
    page.close()
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1


SIDES = ("top", "bottom", "left", "right")
