"""Sweeps that are stopped, killed, or run out of disk lose the pass in flight at most, and go on."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from launch import descendants, environment, find_mpirun, flavour, kill_tree, mpirun, scratch_directory
from mpicoll.bench.planning import FINAL
from mpicoll.bench.store import read_run, whole_part

TIMEOUT = 90
CASES = 6
# Twelve passes: the limit asks for a first look at every case, and then for a better one.
LONG = [
    *(
        "--sizes",
        "256K,384K,512K,640K,768K,1M",
        "--iterations",
        "100000",
        "--warmup",
        "1",
        "--case-time",
        "0.6",
    ),
    *("--algorithms", "ring,builtin", "--precision", "0.001"),
]


def command(directory, *options):
    return [sys.executable, "-m", "mpicoll", "sweep", "-o", directory, *LONG, *options]


def is_python(pid):
    try:
        return Path(f"/proc/{pid}/exe").samefile(sys.executable)
    except OSError:
        return False


def hit(directory, number, *, rank, after):
    """Start or continue a sweep; a rank or mpirun gets a signal a while after the launch was recorded.

    Returns its exit status, and how long it took to end.
    """
    launcher, before = find_mpirun(), launches(directory)
    with scratch_directory() as scratch, subprocess.Popen(
        [launcher, "-n", "2", *map(str, command(directory, "--time-limit", "60s", "--resume"))],
        env=environment(launcher, scratch), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            deadline = time.monotonic() + TIMEOUT
            while launches(directory) == before:
                assert time.monotonic() < deadline
                assert process.poll() is None, process.stdout.read()
                time.sleep(0.01)
            time.sleep(after)
            ranks = [pid for pid in descendants(process.pid) if is_python(pid)]
            begun = time.monotonic()
            with contextlib.suppress(ProcessLookupError):  # it may have come to its end
                os.kill(ranks[1] if rank and len(ranks) > 1 else process.pid, number)
            process.wait(TIMEOUT)
            gone(ranks)
            return process.returncode, time.monotonic() - begun
        finally:
            if process.poll() is None:
                kill_tree(process)


def launches(directory):
    """How many were recorded so far."""
    return len(read_run(directory)["launches"]) if (directory / "run.json").exists() else 0


def gone(ranks):
    """Wait for the ranks to end: whatever happens to their mpirun, they must not stay behind."""
    deadline = time.monotonic() + 30
    while left := [pid for pid in ranks if is_python(pid)]:
        assert time.monotonic() < deadline, f"ranks {left} live on"
        time.sleep(0.05)


def whole(directory):
    """The part of the samples that counts."""
    content = (directory / "samples.csv").read_bytes()
    return content[: whole_part(content).length]


def test_whatever_stops_a_sweep_it_goes_on_where_it_was(tmp_path):
    """Hit four times in one directory, at random moments; then led to its end: all is there, and once."""
    directory, rng = tmp_path / "r", random.Random(os.environ.get("MPICOLL_TEST_SEED", "5"))
    hits = [
        (signal.SIGINT, True), (signal.SIGKILL, True), (signal.SIGKILL, False), (signal.SIGTERM, False),
    ]  # fmt: skip
    kept = b""
    for number, rank in hits:
        status, seconds = hit(directory, number, rank=rank, after=rng.uniform(0, 0.8))
        assert status != 0
        assert seconds < 30
        # Open MPI's mpirun has an exit status of its own for signals sent to itself.
        if number in (signal.SIGINT, signal.SIGTERM) and (rank or flavour(find_mpirun()) == "mpich"):
            assert status == 128 + number
            assert re.match("stopped by SIG", read_run(directory)["launches"][-1]["status"])
        assert whole(directory).startswith(kept)
        kept = whole(directory)
    result = mpirun(2, command(directory, "--resume"), TIMEOUT)
    assert result.returncode == 0, result.stderr
    assert (directory / "samples.csv").read_bytes().startswith(kept)
    complete(directory, len(hits) + 1)


def complete(directory, number):
    """Every case is there, each pass whole and once, and none left open."""
    content = (directory / "samples.csv").read_bytes()
    found = []
    kept = whole_part(content, each=found.extend)
    assert kept.length == len(content)
    passes = {}
    for case, again in kept.passes:
        passes.setdefault(case, []).append(int(again))
    assert sorted(map(int, passes)) == list(range(CASES))
    assert all(numbers == list(range(len(numbers))) for numbers in passes.values())
    timed = Counter((r["case"], r["requested"], r["iteration"]) for r in found if r["warmup"] == "0")
    assert set(timed.values()) == {1}
    run = read_run(directory)
    assert len(run["launches"]) == number
    assert {plan["stopped_by"] for plan in run["plans"].values()} <= set(FINAL)
    assert {plan["passes"] for plan in run["plans"].values()} == set(map(len, passes.values()))


FULL = """
import resource
from mpicoll.bench.store import Store
honest = Store.write_case

def write_case(self, rows):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, before[1]))
    try:
        honest(self, rows)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

Store.write_case = write_case
"""


@pytest.fixture
def small_disk(tmp_path):
    """A folder with room for little: a file system in memory where we may mount one, or None."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "mpicoll-test", folder]
    try:
        mounted = subprocess.run(mount, capture_output=True, timeout=30, check=False).returncode == 0
    except OSError:
        mounted = False
    yield folder if mounted else None
    if mounted:
        subprocess.run(["umount", "-l", folder], timeout=30, check=True)


def test_a_full_disk_is_said_and_continued(tmp_path, small_disk):
    """A small file system where we may mount one; else a limit on the size of a file."""
    directory, options = tmp_path / "r", ["--time-limit", "60s"]
    if small_disk is not None:
        directory = small_disk / "r"
    else:
        (tmp_path / "full.py").write_text(FULL)
        options += ["--load", tmp_path / "full.py"]
    result = mpirun(2, command(directory, *options), TIMEOUT)
    assert result.returncode == 1, result.stderr
    words = "No space left on device; free some space" if small_disk else "File too large"
    assert len(re.findall(f"mpicoll: cannot write to .*{words}", result.stderr)) >= 1
    assert "Traceback" not in result.stderr
    kept = (directory / "samples.csv").read_bytes()
    assert whole_part(kept).length == len(kept)
    assert whole_part(kept).passes
    if small_disk is not None:
        subprocess.run(["mount", "-o", "remount,size=16m", small_disk], timeout=30, check=True)
    result = mpirun(2, command(directory, "--resume"), TIMEOUT)
    assert result.returncode == 0, result.stderr
    assert (directory / "samples.csv").read_bytes().startswith(kept)
    complete(directory, 2)
