"""The formula sheet: one page of all closed forms, read from their docstrings, so that the two cannot differ.

A docstring gives a row. ``Parameters`` gives the inputs, with symbols, domains and units; ``Returns``, in its first
sentence, what comes out. ``Notes`` begins with the equation, up to the first colon, semicolon or period, and ends with
where it is taught and when it goes wrong: "Taught in lecture 01, section 2. Breaks first when arrivals come in rushes."
"""

import html
import inspect
import re
from dataclasses import dataclass

import serving_lib

LECTURES = {
    "01": "01_queueing",
    "02": "02_batching",
    "03": "03_speculative_decoding",
    "04": "04_paged_kv",
    "05": "05_capacity_planning",
}
GREEK = {"lambda": "λ", "rho": "ρ", "mu": "μ", "alpha": "α", "gamma": "γ", "theta": "θ"}
SYMBOL = rf"(?<![\w'])(?:{'|'.join(GREEK)}|C[as](?:\^2)?|T(?:gen|wait)|t0|treq|[B-DF-Zb-z]|a(?= =))(?!\w)"
SIGNS = {"<=": "≤", " x ": " × ", " * ": " · ", " ~ ": " ≈ ", "..": "…", "sum o": "Σ o", "prod o": "Π o", "-": "−"}
DOMAINS = {"positive": "> 0", "nonnegative": "≥ 0", "in [0, 1)": "in [0, 1)"}
# What a Quantity measures, by the first of these words in its name or description.
UNITS = {
    "bandwidth": "bytes/time",
    "bytes": "bytes",
    "rate": "1/time",
    "peak": "1/time",
    "time": "time",
    "wait": "time",
    "budget": "time",
}


@dataclass(frozen=True)
class Input:
    """A parameter of a formula: its name, its symbol in the equation or "", its domain, and its unit or ""."""

    name: str
    symbol: str
    domain: str
    unit: str


@dataclass(frozen=True)
class Formula:
    """A row of the sheet.

    Parameters
    ----------
    name : str
    equation : str
        As the docstring writes it.
    inputs : tuple of Input
    gives : str
        What comes out, with its unit.
    lecture : str
        The number of the lecture that teaches it, such as "01".
    section : int
        And the section.
    breaks : str
        When it goes wrong first.
    """

    name: str
    equation: str
    inputs: tuple[Input, ...]
    gives: str
    lecture: str
    section: int
    breaks: str


def formula_sheet():
    """Return the sheet of all closed forms of the library, in the order in which the lectures teach them.

    Returns
    -------
    FormulaSheet
        Shows itself in a notebook as a table that prints on one page, and as text elsewhere.

    Raises
    ------
    ValueError
        If a docstring lacks a part.

    Examples
    --------
    >>> sheet = formula_sheet()
    >>> next(row.equation for row in sheet.rows if row.name == "calc_mm1_time_in_system")
    'W = S / (1 - rho)'
    """
    rows = (read_docstring(getattr(serving_lib, name)) for name in closed_forms())
    return FormulaSheet(tuple(sorted(rows, key=lambda row: (row.lecture, row.section))))


def closed_forms():
    """Return the names of the library's public closed forms."""
    return [name for name in serving_lib.__all__ if name.startswith("calc_") or name == "affine_batch_chain"]


def read_docstring(function):
    """Return the row of a closed form.

    Parameters
    ----------
    function : callable
        With a docstring of the form above.

    Returns
    -------
    Formula

    Raises
    ------
    ValueError
        If the docstring lacks a part.

    Examples
    --------
    >>> read_docstring(serving_lib.calc_batch_knee).inputs[0]
    Input(name='fixed_time', symbol='t0', domain='≥ 0', unit='time')
    """
    notes = " ".join(_section(function, "Notes").split())
    taught = re.search(r"Taught in lecture (\d\d), section (\d+)\. Breaks first when (.*?)\.$", notes)
    if not taught:
        raise ValueError(
            f"the Notes of {function.__name__} must end with a line such as "
            '"Taught in lecture 01, section 2. Breaks first when arrivals come in rushes."'
        )
    equation = re.split(r"[.:;]\s", notes, maxsplit=1)[0]
    gives = " ".join(_section(function, "Returns").split("\n", 1)[1].split())
    gives = re.split(r"[.:;](?:\s|$)|, in the [\w' ]*\bunit\b", gives, maxsplit=1)[0]
    return Formula(
        function.__name__,
        equation,
        tuple(_inputs(function, equation)),
        gives,
        taught[1],
        int(taught[2]),
        taught[3],
    )


def _section(function, title):
    """Return the text of a section of a docstring."""
    pattern = rf"^{title}\n-+\n(.*?)(?=\n\n\w+\n---|\Z)"
    match = re.search(pattern, inspect.getdoc(function) or "", flags=re.DOTALL | re.MULTILINE)
    if not match:
        raise ValueError(f"the docstring of {function.__name__} must have a section {title}")
    return match[1]


def _inputs(function, equation):
    """Yield the parameters; "As for `calc_other`." stands for those of another formula."""
    for name, kind, text in re.findall(
        r"^(\w[\w, ]*) : (.*)\n((?:    .*\n?)+)", _section(function, "Parameters"), re.M
    ):
        text = " ".join(text.split())
        other = re.search(r"As for `(\w+)`", text)
        if other:
            theirs = {one.name: one for one in _inputs(getattr(serving_lib, other[1]), equation)}
            yield from (theirs[one] for one in name.split(", "))
            continue
        domain = next((DOMAINS[word] for word in re.findall(r"positive|nonnegative|in \[0, 1\)", text.lower())), "any")
        if re.match(r"int\b", kind) and "float" not in kind and domain != "any":
            domain += ", whole"
        if "adding up to one" in text:
            domain += ", sum 1"
        symbols = (symbol for symbol in re.findall(SYMBOL, text) if re.search(rf"\b{re.escape(symbol)}", equation))
        measured = (word for word in re.findall(r"[a-z]+", f"{name} {text}".lower()) if word in UNITS)
        has_unit = "Quantity" in kind and "dimensionless" not in kind
        yield Input(name, next(symbols, ""), domain, UNITS[next(measured)] if has_unit else "")


@dataclass(frozen=True)
class FormulaSheet:
    """All closed forms, as a table.

    Parameters
    ----------
    rows : tuple of Formula
    """

    rows: tuple[Formula, ...]

    def _repr_mimebundle_(self, **_kwargs):
        return {"text/html": self.to_html(), "text/markdown": self.to_markdown(), "text/plain": str(self)}

    def __str__(self):
        return "\n".join(f"{row.name}: {_plain(row.equation)}. Breaks first when {row.breaks}." for row in self.rows)

    def to_markdown(self):
        """Return the sheet as a Markdown table."""
        lines = ["| formula | equation | inputs | gives | taught | breaks first when |", "|---|---|---|---|---|---|"]
        for row in self.rows:
            inputs = "; ".join(_say(one, _plain) for one in row.inputs)
            cells = (
                f"`{row.name}`",
                _plain(row.equation),
                inputs,
                _in_greek(row.gives),
                f"{row.lecture}.{row.section}",
                row.breaks,
            )
            lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
        return "\n".join(lines)

    def to_html(self):
        """Return the sheet as an HTML table that prints on one page of A4 or letter, landscape."""
        columns = {"formula": 22, "equation": 23, "inputs": 29, "taught": 7, "breaks first when": 19}
        head = "".join(f'<th align="left" width="{width}%">{title}</th>' for title, width in columns.items())
        return f'{_STYLE}<table class="formula-sheet"><tr>{head}</tr>{"".join(map(_html_row, self.rows))}</table>'


def _html_row(row):
    cells = (
        f"<b>{_breakable(row.name)}</b><br>{html.escape(_in_greek(row.gives))}",
        _breakable(_typeset(row.equation)),
        "; ".join(_say(one, _typeset, "&nbsp;") for one in row.inputs),
        f'<a href="{LECTURES[row.lecture]}.ipynb">{row.lecture}&nbsp;§{row.section}</a>',
        html.escape(row.breaks),
    )
    # Attributes, not styles: JupyterLab takes styles away from the outputs of a notebook that is not trusted yet.
    return "<tr>" + "".join(f'<td align="left" valign="top">{cell}</td>' for cell in cells) + "</tr>"


def _breakable(name):
    """Let a long name break behind its underscores."""
    return name.replace("_", "_<wbr>")


def _say(one, write, space=" "):
    """Return "arrival_rate λ ≥ 0 (1/time)", with the symbol as `write` puts it; only the first space may break."""
    symbol, domain, unit = write(one.symbol), write(one.domain), f"({one.unit})" if one.unit else ""
    return f"{one.name} " + " ".join(part for part in (symbol, domain, unit) if part).replace(" ", space)


def _plain(equation):
    """Return an equation with the letters and signs of print."""
    equation = _in_greek(re.sub(r"`|\bcalc_", "", equation))
    for written, printed in SIGNS.items():
        equation = equation.replace(written, printed)
    return equation


def _in_greek(text):
    return re.sub(rf"\b({'|'.join(GREEK)})(?=\b|_)", lambda match: GREEK[match[1]], text)


def _typeset(equation):
    """Return an equation as HTML, with its exponents above the line and its indices below."""
    text = html.escape(_plain(equation))
    text = re.sub(r"\^(?:\(([^)]*)\)|(\w+))", lambda match: f"<sup>{match[1] or match[2]}</sup>", text)
    return re.sub(r"\b([ρWCTt])_?(max|q|[as]|gen|wait|req|0)\b", r"\1<sub>\2</sub>", text)


# Doubled class names win over the styles of JupyterLab, which gives every column of a table the same width.
_STYLE = """<style>
table.formula-sheet.formula-sheet { font-size: 12px; width: 100%; table-layout: fixed; margin: 0; }
.formula-sheet.formula-sheet :is(th, td) { text-align: left; vertical-align: top; padding: 3px 6px;
  line-height: 1.3; white-space: normal; border-bottom: 1px solid #e5e7eb; }
.formula-sheet :is(sub, sup) { line-height: 0; }
@media screen { table.formula-sheet.formula-sheet { min-width: 640px; } }
@page { size: landscape; margin: 8mm; }
@media print {
  table.formula-sheet.formula-sheet { font-size: 6.3pt; }
  .formula-sheet.formula-sheet :is(th, td) { padding: 0.4pt 3pt; line-height: 1.1; }
  body:has(.formula-sheet), body:has(.formula-sheet) :is(main, .jp-Cell) { padding: 0; margin: 0; }
  body:has(.formula-sheet) h1:first-child { font-size: 12pt; margin: 0; }
  body:has(.formula-sheet) p { font-size: 7.5pt; margin: 0; }
  body:has(.formula-sheet) :is(.jp-InputPrompt, .jp-OutputPrompt, .jp-CodeCell .jp-Cell-inputWrapper) { display: none; }
}
</style>"""
