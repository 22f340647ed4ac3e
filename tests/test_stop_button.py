"""The stop button of a notebook, pressed in the middle of a long sweep in a real kernel."""

import textwrap
import time

import pytest
from jupyter_client.manager import start_new_kernel

PATIENCE = 60  # seconds until a kernel counts as hung
MODULE = """
import pathlib, time

def slow_in_the_middle(index):
    if index not in (2, 3):
        return index
    time.sleep(0.5)  # until then, the results of the first two have come back
    pathlib.Path(f"{index} is running").touch()
    time.sleep(600)
"""
SWEEPS = {
    "in the kernel": (1, "result = sweep(slow_in_the_middle, {'index': range(100)})"),
    "on processes": (
        2,
        """
        from concurrent.futures import ProcessPoolExecutor
        with ProcessPoolExecutor(2) as pool:
            result = sweep(slow_in_the_middle, {'index': range(100)}, pool)
        """,
    ),
}


@pytest.fixture
def kernel(tmp_path):
    (tmp_path / "work.py").write_text(MODULE)
    manager, client = start_new_kernel(cwd=str(tmp_path))
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def printed(client, request):
    """What a cell has printed, and its error, once it is done."""
    text = ""
    while True:
        message = client.get_iopub_msg(timeout=PATIENCE)
        if message["parent_header"].get("msg_id") != request:
            continue
        content = message["content"]
        text += content.get("text", "") + content.get("evalue", "")
        if content.get("execution_state") == "idle":
            return text


@pytest.mark.parametrize("place", SWEEPS)
def test_the_stop_button_keeps_what_is_done_and_the_kernel(kernel, tmp_path, place):
    manager, client = kernel
    workers, cell = SWEEPS[place]
    sweeping = client.execute(
        "from serving_lib import sweep\nfrom work import slow_in_the_middle\n" + textwrap.dedent(cell)
    )
    deadline = time.monotonic() + PATIENCE
    while len(list(tmp_path.glob("* is running"))) < workers:
        assert time.monotonic() < deadline, "the sweep did not start"
        time.sleep(0.05)
    manager.interrupt_kernel()
    printed(client, sweeping)
    asked = client.execute("print(result.stopped, [row.value for row in result.rows[:4]], result.rows[-1].value)")
    assert printed(client, asked) == "interrupted [0, 1, None, None] None\n"
