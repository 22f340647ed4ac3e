"""Workloads that are read from files, and written to them."""

import csv
import gzip
import json
import math
import re
import zlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from os import replace
from pathlib import Path

from serving_lib.workload.core import MAX_TOKENS, Workload, row_names


class TraceError(ValueError):
    """A trace file that cannot be read as a workload.

    Attributes
    ----------
    path : str
        The file.
    line : int or None
        The line, counted from 1, where one is to blame.
    column : str or None
        The column, where one is to blame.
    problem, mend : str
        What is wrong, and what to do about it.
    """

    def __init__(self, problem, mend, line=None, column=None):
        super().__init__(problem, mend, line, column)
        self.problem, self.mend, self.line, self.column = problem, mend, line, column
        self.path = "trace"

    def __str__(self):
        line = f", line {self.line}" if self.line is not None else ""
        column = f", column {self.column!r}" if self.column is not None else ""
        return f"{self.path}{line}{column}: {self.problem}. {self.mend}"


def read_trace(path, failed="raise"):
    r"""Read a request trace: Azure CSV, BurstGPT CSV, Mooncake JSON lines, or the workbook's own CSV; plain or gzip.

    Parameters
    ----------
    path : str or Path
        The file. Columns are found by name; their order and any others do not matter.
    failed : {"raise", "drop"}
        BurstGPT logs a failed request with 0 response tokens. Refuse a file that holds some, or leave them out.

    Returns
    -------
    Workload
        In the order of the file; ids are the row numbers "0", "1", ... of the requests kept. The first request of a
        foreign trace arrives at 0. The workbook's own CSV already counts in seconds and is taken as it is, so that a
        saved workload comes back equal.

    Raises
    ------
    TraceError
        If anything in the file is not as it must be. Nothing is half read.
    OSError
        If the file cannot be opened.

    Notes
    -----
    ========  ==========================================================  =================================
    format    columns: time, prompt tokens, new tokens                    time
    ========  ==========================================================  =================================
    own       ``arrival``, ``prompt_tokens``, ``new_tokens``              seconds
    Azure     ``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens``       date and time, exact to 1e-7 s
    BurstGPT  ``Timestamp``, ``Request tokens``, ``Response tokens``      seconds
    Mooncake  ``timestamp``, ``input_length``, ``output_length``          milliseconds
    ========  ==========================================================  =================================

    A date without a time zone counts as UTC. Blank lines, a byte order mark and either line ending are fine.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "trace.csv")
    ...     _ = path.write_text("arrival,prompt_tokens,new_tokens\n0.5,374,44\n4.75,396,109\n")
    ...     read_trace(path).arrival.tolist()
    [0.5, 4.75]
    """
    if failed not in ("raise", "drop"):
        raise ValueError(f'failed must be "raise" or "drop", got {failed!r}')
    try:
        return _as_workload(*_format_and_rows(_text_lines(Path(path))), drop_failed=failed == "drop")
    except TraceError as error:
        error.path = str(path)
        raise


def write_trace(workload, path):
    """Write a workload as the workbook's own CSV, which `read_trace` reads back exactly.

    Parameters
    ----------
    workload : Workload
        The requests. Ids are not written: they come back as row numbers.
    path : str or Path
        The file; a name that ends in ``.gz`` is compressed. An old file is replaced only once the new one is whole.

    Raises
    ------
    OSError
        If the file cannot be written; the old file, if there was one, is untouched.

    Examples
    --------
    >>> import tempfile
    >>> from serving_lib.workload import poisson
    >>> workload = poisson(rate=2, requests=100, seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_trace(workload, Path(folder, "trace.csv.gz"))
    ...     read_trace(Path(folder, "trace.csv.gz")) == workload
    True
    """
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    columns = zip(*(getattr(workload, name).tolist() for name in _OWN.columns), strict=True)
    try:
        with (gzip.open if path.suffix == ".gz" else open)(partial, "wt", encoding="utf-8", newline="\n") as file:
            file.write(",".join(_OWN.columns) + "\n")
            file.writelines(f"{time!r},{prompt},{new}\n" for time, prompt, new in columns)
        replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _text_lines(path):
    """Yield the lines of a file, unpacked and decoded."""
    number, raw = 0, b""
    with path.open("rb") as file:
        packed = file.peek(2)[:2] == b"\x1f\x8b"
        try:
            for number, raw in enumerate(gzip.GzipFile(fileobj=file) if packed else file, 1):
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                if "\0" in line:
                    raise TraceError("holds a zero byte, so it is not text", _SAVE_AS_TEXT, number)
                yield line
        except UnicodeDecodeError as error:
            utf_16 = number == 1 and raw[:2] in (b"\xff\xfe", b"\xfe\xff")
            problem = "is UTF-16 text" if utf_16 else f"is not UTF-8 text (byte {error.object[error.start]:#04x})"
            raise TraceError(problem, _SAVE_AS_TEXT, number) from None
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise TraceError("the gzip data is cut off or damaged", "Fetch the file again.", number + 1) from None


def _format_and_rows(lines):
    """Return the format of a trace, and an iterator of (line number, [time, prompt tokens, new tokens])."""
    opening = []  # up to the first line that is not blank
    for line in lines:
        opening.append(line)
        if line.strip():
            break
    is_json = bool(opening) and opening[-1].lstrip().startswith("{")
    lines = chain(opening, lines)
    return (_MOONCAKE, _json_rows(lines)) if is_json else _csv_format_and_rows(lines)


def _csv_format_and_rows(lines):
    rows = _csv_rows(lines)
    line, header = next(rows, (None, []))
    if not header:
        raise TraceError("is empty", "Write a header line, and one line for each request.")
    known = (_OWN, _AZURE, _BURSTGPT)
    trace = max(known, key=lambda trace: len(set(trace.columns) & set(header)))
    for name in trace.columns:
        if name not in header:
            names = "; ".join(",".join(trace.columns) for trace in known)
            raise TraceError(f"is not in the header {_shown(','.join(header))}", f"Known are {names}.", line, name)
        if header.count(name) > 1:
            raise TraceError("is twice in the header", "Rename or remove one of the two.", line, name)
    return trace, _chosen_cells(rows, [header.index(name) for name in trace.columns], len(header))


def _csv_rows(lines):
    reader = csv.reader(lines, strict=True)
    try:
        for row in reader:
            if len(row) > 1 or any(cell.strip() for cell in row):  # not a blank line
                yield reader.line_num, [cell.strip() for cell in row]
    except csv.Error as error:
        mend = "Close every quote, and end each line with a line feed."
        raise TraceError(f"is not CSV ({error})", mend, reader.line_num) from None


def _chosen_cells(rows, positions, width):
    for line, cells in rows:
        if len(cells) != width:
            problem = f"has {len(cells)} fields where the header has {width}"
            raise TraceError(problem, "Correct or remove the line.", line)
        yield line, [cells[position] for position in positions]


def _json_rows(lines):
    mend = "Write one JSON object on each line."
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"is not complete JSON ({error})", mend, number) from None
        if not isinstance(record, dict):
            raise TraceError("is not a JSON object", mend, number)
        for name in _MOONCAKE.columns:
            if name not in record:
                raise TraceError("is missing", "Write it in every object.", number, name)
        yield number, [record[name] for name in _MOONCAKE.columns]


def _as_workload(trace, rows, drop_failed):
    arrivals, prompts, news, failures = array("d"), array("q"), array("q"), []
    origin = None if trace.from_first else 0
    previous = -math.inf
    time_column, prompt_column, new_column = trace.columns
    for line, (time_cell, prompt_cell, new_cell) in rows:
        try:
            column = time_column
            time = trace.read_time(time_cell)
            if time < previous:
                raise TraceError(f"{_shown(time_cell)} is before the line above", f"Sort the file by {column}.")
            is_failure = trace.logs_failures and new_cell == "0"
            column = prompt_column
            prompt = None if is_failure and prompt_cell == "0" else trace.read_tokens(prompt_cell)
            column = new_column
            new = None if is_failure else trace.read_tokens(new_cell)
        except TraceError as error:
            error.line, error.column = line, column
            raise
        previous = time
        if is_failure:
            failures.append(line)
            continue
        origin = time if origin is None else origin
        # Whole nanoseconds and milliseconds subtract exactly, and the division rounds once.
        arrivals.append((time - origin) / trace.per_second)
        prompts.append(prompt)
        news.append(new)
    if failures and not drop_failed:
        requests = "1 request failed" if len(failures) == 1 else f"{len(failures):,} requests failed"
        problem = f"{requests} (0 tokens came back), the first of them here"
        raise TraceError(problem, 'Leave them out with failed="drop".', failures[0], new_column)
    if not arrivals:
        raise TraceError("holds no request", "Write one line for each request.")
    return Workload(row_names(len(arrivals)), arrivals, prompts, news)


def _tokens_of_text(cell):
    # Python refuses to convert thousands of digits, so a long cell is turned away by its length.
    is_number = cell.isascii() and cell.isdecimal() and len(cell) < 100
    return _checked_tokens(int(cell) if is_number else None, cell)


def _tokens_of_json(cell):
    return _checked_tokens(cell if type(cell) is int else None, cell)  # a bool would pass isinstance


def _checked_tokens(count, cell):
    if count is None or not 1 <= count <= MAX_TOKENS:
        problem = f"{_shown(cell)} is not a whole number between 1 and {MAX_TOKENS:,}"
        raise TraceError(problem, "Correct or remove the line.")
    return count


def _seconds_of_text(cell):
    if not _NUMBER.fullmatch(cell):
        raise TraceError(f"{_shown(cell)} is not a number of seconds", "Write a finite time, such as 12.5.")
    return _checked_time(float(cell))


def _seconds_from_zero(cell):
    seconds = _seconds_of_text(cell)
    if seconds < 0:
        raise TraceError(f"{_shown(cell)} is negative", "Count arrivals from 0.")
    return seconds


def _milliseconds_of_json(cell):
    if type(cell) not in (int, float):
        raise TraceError(f"{_shown(cell)} is not a number of milliseconds", "Write a finite time, such as 12500.")
    return _checked_time(cell)


def _checked_time(time):
    if not abs(time) <= _MAX_TIME:  # NaN is not either
        raise TraceError(f"{_shown(time)} is not a time within 30,000 years", "Write a finite time.")
    return time


def _nanoseconds_of_date(cell):
    match = _DATE.fullmatch(cell)
    try:
        moment = datetime.fromisoformat(match[1] + (match[3] or "+00:00")) - _EPOCH
    except (TypeError, ValueError):  # no match, or no such day
        mend = "Write a time such as 2023-11-16 18:15:46.6805900."
        raise TraceError(f"{_shown(cell)} is not a date and time", mend) from None
    return (moment.days * 86400 + moment.seconds) * 10**9 + int((match[2] or "").ljust(9, "0"))


def _shown(value):
    """Return a value as an error shows it: cut when long."""
    text = "a huge number" if isinstance(value, int) and abs(value) > 10**30 else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class _TraceFormat:
    """How one kind of trace writes the time, the prompt tokens and the new tokens of a request."""

    columns: tuple[str, str, str]
    read_time: Callable
    per_second: int
    read_tokens: Callable = _tokens_of_text
    from_first: bool = True  # time counts from the first request, not from 0
    logs_failures: bool = False  # 0 new tokens mark a failed request


_OWN = _TraceFormat(("arrival", "prompt_tokens", "new_tokens"), _seconds_from_zero, 1, from_first=False)
_AZURE = _TraceFormat(("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _nanoseconds_of_date, 10**9)
_BURSTGPT = _TraceFormat(("Timestamp", "Request tokens", "Response tokens"), _seconds_of_text, 1, logs_failures=True)
_MOONCAKE = _TraceFormat(("timestamp", "input_length", "output_length"), _milliseconds_of_json, 1000, _tokens_of_json)

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))? ?(Z|[+-]\d\d(?::?\d\d)?)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_TIME = 10**15  # in milliseconds; a double still tells 0.1 ms apart there
_SAVE_AS_TEXT = "Save it as UTF-8 text: CSV, or JSON lines."
