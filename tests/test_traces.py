"""Trace files: every format that is read, every fault that is named, and what is written back."""

import gzip
import json
import os
import pickle
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_lib.workload import TraceError, Workload, poisson, profile, read_trace, write_trace

OWN = "arrival,prompt_tokens,new_tokens\n0.5,374,44\n4.75,396,109\n"
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45.5,GPT-4,1087,230,1317,API log\n"
)
MOONCAKE = (
    '{"timestamp": 27482, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
    '{"timestamp": 30535, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14]}\n'
)
FORMATS = {"own": OWN, "azure": AZURE, "burstgpt": BURSTGPT, "mooncake": MOONCAKE}
EXPECTED = {
    "own": ([0.5, 4.75], [374, 396], [44, 109]),
    "azure": ([0.0, 4.314579], [374, 396], [44, 109]),
    "burstgpt": ([0.0, 40.5], [472, 1087], [18, 230]),
    "mooncake": ([0.0, 3.053], [6758, 7322], [500, 490]),
}


@pytest.fixture
def trace_file(tmp_path):
    """Write a trace and return its path."""

    def write(content, name="trace.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def assert_reads_as(workload, name):
    arrival, prompt, new = EXPECTED[name]
    assert workload.arrival.tolist() == arrival
    assert workload.prompt_tokens.tolist() == prompt
    assert workload.new_tokens.tolist() == new
    assert workload.id.tolist() == ["0", "1"]


# ---- what is read

DISGUISES = {
    "as it is": lambda text: text,
    "gzip": lambda text: gzip.compress(text.encode()),
    "gzip in two members": lambda text: gzip.compress(text[:40].encode()) + gzip.compress(text[40:].encode()),
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "byte order mark": lambda text: "\ufeff" + text,
    "no final line feed": lambda text: text.rstrip("\n"),
    "blank lines": lambda text: "\n  \n" + text.replace("\n", "\n\n\t\n"),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("disguise", DISGUISES.values(), ids=DISGUISES)
def test_every_format_is_read_in_every_dress(trace_file, name, disguise):
    assert_reads_as(read_trace(trace_file(disguise(FORMATS[name]))), name)


@pytest.mark.parametrize("name", ["own", "azure", "burstgpt"])
def test_columns_are_found_by_name_whatever_their_order_quotes_and_neighbors(trace_file, name):
    rows = [line.split(",") for line in FORMATS[name].splitlines()]
    turned = [[f'"{k}, ""x"""', *reversed(row)] for k, row in enumerate(rows)]
    text = "\n".join(",".join(cell if cell.startswith('"') else f'"{cell}"' for cell in row) for row in turned)
    assert_reads_as(read_trace(trace_file(text)), name)
    spaced = "\n".join(" , ".join(row) for row in rows)
    assert_reads_as(read_trace(trace_file(spaced)), name)


def test_the_name_of_the_file_says_nothing(trace_file):
    assert_reads_as(read_trace(trace_file(AZURE, "trace.gz")), "azure")
    assert_reads_as(read_trace(str(trace_file(gzip.compress(MOONCAKE.encode()), "trace.txt"))), "mooncake")


def azure(*times):
    return "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{time},1,1\n" for time in times)


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        (("2023-11-16 18:15:46.6805900", "2023-11-16 18:15:46.6805901"), 1e-7),
        (("2023-11-16 23:59:59.9999999", "2023-11-17 00:00:00"), 1e-7),
        (("2024-02-28 23:00:00", "2024-03-01 00:00:00"), 90_000),
        (("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01.009930+00:00"), 1),
        (("2024-05-10T00:00:00Z", "2024-05-10T00:00:00.000000001Z"), 1e-9),
        (("2024-05-10 00:00:00+00:00", "2024-05-10 02:00:00+02:00"), 0),
        (("2024-05-10 00:00:00", "2024-05-10 00:00:00.5+00:00"), 0.5),
        (("1970-01-01 00:00:00", "2262-04-11 23:47:16.854775808"), 2**63 / 10**9),  # one more than 64 bits hold
    ],
)
def test_dates_are_exact_to_the_last_digit(trace_file, times, seconds):
    assert read_trace(trace_file(azure(*times))).arrival[1] == seconds


def test_a_foreign_trace_starts_at_zero_and_our_own_is_taken_as_it_is(trace_file):
    assert read_trace(trace_file(BURSTGPT)).arrival[0] == 0
    assert read_trace(trace_file(OWN)).arrival[0] == 0.5


def test_requests_may_arrive_together(trace_file):
    assert read_trace(trace_file(OWN + "4.75,1,1\n")).arrival.tolist() == [0.5, 4.75, 4.75]


FAILED = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,0,472,Conversation log\n"
    "9,ChatGPT,0,0,0,Conversation log\n"
    "45,ChatGPT,1087,230,1317,Conversation log\n"
)


def test_failed_requests_of_burstgpt_raise_with_their_count_and_the_mend(trace_file):
    with pytest.raises(TraceError, match=r"line 2, column 'Response tokens': 2 requests failed.*failed=\"drop\""):
        read_trace(trace_file(FAILED))


def test_failed_requests_of_burstgpt_can_be_dropped(trace_file):
    workload = read_trace(trace_file(FAILED), failed="drop")
    assert (workload.arrival.tolist(), workload.new_tokens.tolist()) == ([0.0], [230])


@pytest.mark.parametrize("row", ["3,ChatGPT,472,0,472,log", "50,ChatGPT,x,0,472,log", "50,ChatGPT,-4,0,472,log"])
def test_a_failed_request_must_still_be_well_formed(trace_file, row):
    with pytest.raises(TraceError, match="line 5"):
        read_trace(trace_file(FAILED + row + "\n"), failed="drop")


def test_a_trace_of_failures_alone_holds_no_request(trace_file):
    with pytest.raises(TraceError, match="holds no request"):
        read_trace(trace_file("\n".join(FAILED.splitlines()[:3])), failed="drop")


@pytest.mark.parametrize("name", ["own", "azure"])
def test_zero_tokens_are_no_failed_request_in_any_other_format(trace_file, name):
    last = FORMATS[name].splitlines()[-1].rsplit(",", 1)[0]
    with pytest.raises(TraceError, match="line 4"):
        read_trace(trace_file(FORMATS[name] + last + ",0\n"), failed="drop")


def test_failed_must_be_raise_or_drop(trace_file):
    with pytest.raises(ValueError, match="failed must be"):
        read_trace(trace_file(OWN), failed="ignore")


# ---- what is refused: content, line, column, words


def own(row):
    return OWN + row + "\n"


def mooncake(**changes):
    record = {"timestamp": 30600, "input_length": 7, "output_length": 5, "hash_ids": []} | changes
    return MOONCAKE + json.dumps({key: value for key, value in record.items() if value is not None}) + "\n"


NINES = "9" * 5000
FAULTS = {
    # the file
    "empty": ("", None, None, "is empty"),
    "white space only": (" \n\n", None, None, "is empty"),
    "empty gzip": (gzip.compress(b""), None, None, "is empty"),
    "header only": ("arrival,prompt_tokens,new_tokens\n", None, None, "holds no request"),
    "gzip cut off": (
        gzip.compress(azure(*["2023-11-16 18:15:46"] * 9000).encode())[:-30],
        ...,
        None,
        "gzip data is cut off or damaged",
    ),
    "gzip header alone": (gzip.compress(AZURE.encode())[:6], 1, None, "gzip data is cut off or damaged"),
    "gzip with a wrong checksum": (gzip.compress(AZURE.encode())[:-8] + bytes(8), ..., None, "cut off or damaged"),
    "gzip with garbage inside": (gzip.compress(b"")[:10] + b"\xff" * 99, 1, None, "cut off or damaged"),
    "gzip of a binary": (gzip.compress(bytes(range(256))), 1, None, "zero byte"),
    "binary": (b"PAR1\x15\x04\x15\x00\x15", 1, None, "zero byte"),
    "binary after a good start": (AZURE.encode() + b"\x00\x01", 4, None, "zero byte"),
    "UTF-16": (AZURE.encode("utf-16"), 1, None, "is UTF-16 text"),
    "UTF-16 big end first": (b"\xfe\xff" + AZURE.encode("utf-16-be"), 1, None, "is UTF-16 text"),
    "UTF-16 without mark": (AZURE.encode("utf-16-le"), 1, None, "zero byte"),
    "Latin-1": (OWN.replace("44", "4\xe9").encode("latin-1"), 2, None, "is not UTF-8 text (byte 0xe9)"),
    # the header
    "no header": ("0.5,374,44\n4.75,396,109\n", 1, "arrival", "is not in the header '0.5,374,44'"),
    "missing column": (OWN.replace("new_tokens", "tokens"), 1, "new_tokens", "is not in the header"),
    "missing column of BurstGPT": (BURSTGPT.replace("Timestamp", "Time"), 1, "Timestamp", "is not in the header"),
    "column twice": (OWN.replace("new_tokens", "arrival,new_tokens"), 1, "arrival", "is twice in the header"),
    "semicolons": (OWN.replace(",", ";"), 1, "arrival", "is not in the header"),
    "a JSON array": ("[" + MOONCAKE.replace("\n", ","), 1, ..., "is not in the header"),
    # the shape of a row
    "short row": (own("9,5"), 4, None, "has 2 fields where the header has 3"),
    "long row": (own("9,5,5,5"), 4, None, "has 4 fields where the header has 3"),
    "row of commas": (own(",,"), 4, "arrival", "'' is not a number of seconds"),
    "unclosed quote": (own('9,"5,5'), 4, None, "is not CSV"),
    "text after a quote": (own('9,"5"5,5'), 4, None, "is not CSV"),
    "carriage return within a line": (own("9,5,5\r10,5,5"), 4, None, "is not CSV"),
    "huge field": (own("9,5," + "x" * 200_000), 4, None, "is not CSV"),
    "JSON in a CSV": (OWN + MOONCAKE, 4, None, "has 5 fields where the header has 3"),
    "CSV in JSON": (MOONCAKE + "5,6,7\n", 3, None, "is not complete JSON"),
    "another header in the middle": (OWN + OWN, 4, "arrival", "'arrival' is not a number of seconds"),
    # time
    "time is text": (own("noon,5,5"), 4, "arrival", "'noon' is not a number of seconds"),
    "time is NaN": (own("nan,5,5"), 4, "arrival", "'nan' is not a number of seconds"),
    "time is infinite": (own("inf,5,5"), 4, "arrival", "'inf' is not a number of seconds"),
    "time overflows": (own("1e999,5,5"), 4, "arrival", "not a time within"),
    "time with underscores": (own("1_000,5,5"), 4, "arrival", "not a number of seconds"),
    "time in other digits": (own("\u0669,5,5"), 4, "arrival", "not a number of seconds"),
    "time is negative": (OWN.replace("0.5", "-0.5"), 2, "arrival", "'-0.5' is negative"),
    "time goes back": (own("4.7,5,5"), 4, "arrival", "'4.7' is before the line above"),
    "date goes back": (azure("2023-11-16 18:15:46.2", "2023-11-16 18:15:46.1"), 3, "TIMESTAMP", "before the line"),
    "date goes back through its zone": (
        azure("2024-05-10 00:00:00+00:00", "2024-05-10 00:30:00+01:00"),
        3,
        "TIMESTAMP",
        "is before the line above",
    ),
    "date is text": (azure("today"), 2, "TIMESTAMP", "'today' is not a date and time"),
    "date is missing": (azure(""), 2, "TIMESTAMP", "'' is not a date and time"),
    "date alone": (azure("2023-11-16"), 2, "TIMESTAMP", "is not a date and time"),
    "no such day": (azure("2023-02-29 10:00:00"), 2, "TIMESTAMP", "is not a date and time"),
    "no such hour": (azure("2023-02-28 25:00:00"), 2, "TIMESTAMP", "is not a date and time"),
    "no such zone": (azure("2023-02-28 10:00:00+99:00"), 2, "TIMESTAMP", "is not a date and time"),
    "seconds for a date": (azure("1700158546"), 2, "TIMESTAMP", "is not a date and time"),
    "milliseconds as text": (mooncake(timestamp="30600"), 3, "timestamp", "is not a number of milliseconds"),
    "milliseconds as bool": (mooncake(timestamp=True), 3, "timestamp", "True is not a number of milliseconds"),
    "milliseconds are NaN": (mooncake(timestamp=float("nan")), 3, "timestamp", "nan is not a time"),
    "milliseconds are infinite": (mooncake(timestamp=float("inf")), 3, "timestamp", "inf is not a time"),
    "milliseconds are huge": (mooncake(timestamp=10**400), 3, "timestamp", "a huge number is not a time"),
    "milliseconds go back": (mooncake(timestamp=30534), 3, "timestamp", "30534 is before the line above"),
    "milliseconds are missing": (mooncake(timestamp=None), 3, "timestamp", "is missing"),
    # tokens
    "no tokens": (own("9,0,5"), 4, "prompt_tokens", "'0' is not a whole number between 1 and"),
    "negative tokens": (own("9,5,-5"), 4, "new_tokens", "'-5' is not a whole number"),
    "signed tokens": (own("9,5,+5"), 4, "new_tokens", "'+5' is not a whole number"),
    "half a token": (own("9,5.5,5"), 4, "prompt_tokens", "'5.5' is not a whole number"),
    "tokens as a float": (own("9,5.0,5"), 4, "prompt_tokens", "'5.0' is not a whole number"),
    "tokens are text": (own("9,five,5"), 4, "prompt_tokens", "'five' is not a whole number"),
    "tokens are missing": (own("9,,5"), 4, "prompt_tokens", "'' is not a whole number"),
    "tokens are NaN": (own("9,NaN,5"), 4, "prompt_tokens", "'NaN' is not a whole number"),
    "tokens in other digits": (own("9,\u0665,5"), 4, "prompt_tokens", "is not a whole number"),
    "tokens with underscores": (own("9,1_0,5"), 4, "prompt_tokens", "'1_0' is not a whole number"),
    "tokens beyond 64 bits": (own(f"9,5,{2**64}"), 4, "new_tokens", "is not a whole number between"),
    "tokens of 5,000 digits": (own(f"9,5,{NINES}"), 4, "new_tokens", "is not a whole number between"),
    "JSON tokens are zero": (mooncake(output_length=0), 3, "output_length", "0 is not a whole number"),
    "JSON tokens are negative": (mooncake(input_length=-1), 3, "input_length", "-1 is not a whole number"),
    "JSON tokens are bool": (mooncake(output_length=True), 3, "output_length", "True is not a whole number"),
    "JSON tokens are a float": (mooncake(output_length=5.0), 3, "output_length", "5.0 is not a whole number"),
    "JSON tokens are text": (mooncake(output_length="5"), 3, "output_length", "'5' is not a whole number"),
    "JSON tokens are a list": (mooncake(output_length=[5]), 3, "output_length", "[5] is not a whole number"),
    "JSON tokens are huge": (mooncake(input_length=10**300), 3, "input_length", "a huge number is not a whole number"),
    "JSON tokens are missing": (mooncake(input_length=None), 3, "input_length", "is missing"),
    "JSON tokens of 5,000 digits": (MOONCAKE + '{"timestamp": ' + NINES + "}", 3, None, "is not complete JSON"),
    # the shape of JSON lines
    "JSON cut off": (MOONCAKE[:-30], 2, None, "is not complete JSON"),
    "JSON number on a line": (MOONCAKE + "5\n", 3, None, "is not a JSON object"),
    "JSON list on a line": (MOONCAKE + "[1, 2, 3]\n", 3, None, "is not a JSON object"),
    "two objects on a line": (MOONCAKE.replace("\n", ""), 1, None, "is not complete JSON"),
    "JSON deeper than any": (MOONCAKE + '{"a":' + "[" * 200_000 + "\n", 3, None, "is not complete JSON"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_file_line_column_and_mend(trace_file, fault):
    content, line, column, words = FAULTS[fault]
    path = trace_file(content)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    error = caught.value
    assert error.path == str(path)
    assert str(error).startswith(str(path))
    assert words in error.problem
    assert error.mend.endswith(".")
    assert line is ... or error.line == line
    assert column is ... or error.column == column
    assert len(str(error)) < 600
    assert isinstance(error, ValueError)


@pytest.mark.parametrize("position", [0, 500, 999])
def test_a_bad_row_anywhere_in_a_long_file_is_found(trace_file, position):
    rows = [f"{k},5,5" for k in range(1000)]
    rows[position] = f"{position},5,?"
    with pytest.raises(TraceError) as caught:
        read_trace(trace_file("arrival,prompt_tokens,new_tokens\n" + "\n".join(rows)))
    assert (caught.value.line, caught.value.column) == (position + 2, "new_tokens")


def test_the_line_counts_blank_lines_and_lines_within_quotes(trace_file):
    text = 'arrival,prompt_tokens,new_tokens,note\n\n0,5,5,"two\nlines"\n\n1,5,x,\n'
    with pytest.raises(TraceError) as caught:
        read_trace(trace_file(text))
    assert caught.value.line == 6


def test_an_error_survives_the_way_back_from_another_process(trace_file):
    with pytest.raises(TraceError) as caught:
        read_trace(trace_file(own("9,0,5")))
    back = pickle.loads(pickle.dumps(caught.value))
    assert (type(back), str(back), back.line) == (TraceError, str(caught.value), 4)


def test_a_missing_file_is_an_ordinary_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "none.csv")


@given(st.binary(max_size=300), st.sampled_from(["", *FORMATS.values()]), st.integers(0, 300))
@settings(max_examples=500, deadline=None)
def test_any_bytes_give_a_workload_or_a_trace_error(tmp_path_factory, noise, text, at):
    path = tmp_path_factory.getbasetemp() / "noise.csv"
    path.write_bytes(text.encode()[:at] + noise + text.encode()[at:])
    try:
        requests = len(read_trace(path, failed="drop"))
    except TraceError:
        return
    assert requests > 0


# ---- the real files


@pytest.mark.parametrize(
    ("file", "requests", "prompt_tokens", "new_tokens", "last_arrival"),
    [
        ("AzureLLMInferenceTrace_conv.csv", 19366, 22361870, 4088665, 3501.7219370),
        ("AzureLLMInferenceTrace_code.csv", 8819, 18059974, 245896, 3435.9480560),
        ("mooncake_conversation_trace.jsonl", 12031, 144793823, 4122048, 3536.999),
    ],
)
def test_the_real_traces_are_read_whole(shared_data, file, requests, prompt_tokens, new_tokens, last_arrival):
    workload = read_trace(shared_data / file)
    assert len(workload) == requests
    assert (workload.prompt_tokens.sum(), workload.new_tokens.sum()) == (prompt_tokens, new_tokens)
    assert (workload.arrival[0], workload.arrival[-1]) == (0, last_arrival)


# ---- what is written


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_a_written_workload_comes_back_equal(tmp_path, name):
    workload = profile("azure-code-2023", seed=3)
    write_trace(workload, tmp_path / name)
    assert read_trace(tmp_path / name) == workload
    assert os.listdir(tmp_path) == [name]


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=20), st.integers(1, 10**9))
@settings(max_examples=200, deadline=None)
def test_every_time_comes_back_to_the_last_bit(tmp_path_factory, times, tokens):
    path = tmp_path_factory.getbasetemp() / "times.csv"
    ids = [str(k) for k in range(len(times))]
    workload = Workload(ids, sorted(times), [tokens] * len(ids), [1] * len(ids))
    write_trace(workload, path)
    assert read_trace(path) == workload


def test_an_old_file_is_replaced(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("old")
    write_trace(poisson(2, 5, seed=1), path)
    assert len(read_trace(path)) == 5


def test_a_disk_that_fills_up_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(OWN)
    script = (
        "import resource, signal, sys; from serving_lib import poisson, write_trace;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000));"
        "write_trace(poisson(2, 100_000, seed=1), sys.argv[1])"
    )
    run = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert "File too large" in run.stderr
    assert path.read_text() == OWN
    assert os.listdir(tmp_path) == ["trace.csv"]


def test_a_folder_that_is_not_there_is_an_ordinary_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_trace(poisson(2, 5, seed=1), tmp_path / "none" / "trace.csv")
