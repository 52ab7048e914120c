"""`mpicoll overlap` measures, checks, records and is reported; a failing rank ends a job that overlaps."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from devices import FAKE
from launch import descendants, environment, find_mpirun, kill_tree, mpirun, scratch_directory
from mpicoll.bench import overlap_file, overlap_section
from mpicoll.bench.store import StoreError

OVERLAP = (
    "overlap --layers 3 --width 32 --batch 8 --buckets 1K:8K:8 --iterations 6 --warmup 1 --seed 3".split()
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    target = tmp_path_factory.mktemp("overlap") / "run"
    done = mpirun(2, [sys.executable, "-m", "mpicoll", *OVERLAP, "-o", target], 100)
    assert done.returncode == 0, done.stderr
    return target, done.stdout


def test_every_mode_is_in_every_iteration(measured: tuple[Path, str]) -> None:
    with (measured[0] / "overlap.csv").open() as file:
        rows = list(csv.DictReader(file))
    modes = {(row["mode"], row["bucket_bytes"]) for row in rows}
    assert modes == {
        ("compute only", ""), ("per tensor", ""), ("bucketed", "8192"),
        ("overlapped", "1024"), ("overlapped", "8192"),
        ("communication only", "1024"), ("communication only", "8192"),
        ("communication asleep", "1024"), ("communication asleep", "8192"),
    }  # fmt: skip
    assert len(rows) == 7 * len(modes)
    assert sum(row["warmup"] == "1" for row in rows) == len(modes)
    orders = [[row["mode"] for row in rows if row["iteration"] == str(i)] for i in range(6)]
    assert len(set(map(tuple, orders))) > 1, "the modes always ran in the same order"
    for row in rows:
        assert float(row["seconds"]) >= float(row["seconds_min"]) > 0
        assert (row["status"], row["buffer"]) == ("ok", "host")


def test_what_is_recorded_and_said(measured: tuple[Path, str]) -> None:
    target, said = measured
    run = json.loads((target / "run.json").read_text())
    assert run["launches"][0]["status"] == "complete"
    assert run["launches"][0]["blas"]["OPENBLAS_NUM_THREADS"] == "1"
    assert run["identity"]["thread_level"] in ("serialized", "multiple")
    for rank in range(2):
        events = json.loads((target / f"trace-rank{rank}.json").read_text())["traceEvents"]
        assert {e["args"]["mode"] for e in events} == {"overlapped", "bucketed", "per tensor"}
        assert any(e.get("cat") == "flight" for e in events)
        named = {(e["pid"], e["tid"]) for e in events if (e["ph"], e["name"]) == ("M", "thread_name")}
        for event in events:  # as the Trace Event Format has it: metadata, and complete events in µs
            assert event["ph"] in ("M", "X")
            assert isinstance(event["pid"], int)
            assert isinstance(event["tid"], int)
            if event["ph"] == "X":
                assert (event["pid"], event["tid"]) in named
                assert min(event["ts"], event["dur"]) >= 0
    for one in run["overlap"]["buckets"]:  # as they were chosen, whatever was asked for
        assert one["algorithms"] == ["recursive_doubling"] * (one["mode"] != "compute only")
    for word in (
        "all-reduces: recursive_doubling (per tensor, ",
        "overlapped",
        "hidden",
        "model: a bucket takes",
        "+ CPU: moving the messages",
    ):
        assert word in said
    assert re.search("(recommended bucket size: |no bucket size is recommended: .*\nwhy: )", said)


def test_report_has_a_section(measured: tuple[Path, str], tmp_path: Path) -> None:
    done = mpirun(1, [sys.executable, "-m", "mpicoll", "report", measured[0], "-o", tmp_path], 100)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report.html").read_text()
    for text in ("Gradients overlapped with the backward pass", "ucket size", "model + CPU [ms]"):
        assert text in page
    assert {p.name.partition("-")[0] for p in (tmp_path / "figures").glob("*.svg")} == {
        "steps", "buckets", "timeline",
    }  # fmt: skip


FAILS = """
from mpi4py import MPI
import numpy as np, mpicoll, sys
grads = {{f"w{{i}}": np.zeros(1000, "f") for i in range(4)}}
reducer = mpicoll.GradientReducer(MPI.COMM_WORLD, grads, bucket_bytes=4000)
for step in range(3):
    for name in grads:
        if step == 1 and name == "w2" and MPI.COMM_WORLD.rank == 1:
            {what}
        reducer.ready(name)
    reducer.wait()
"""


@pytest.mark.parametrize("what", ["1 / 0", "sys.exit(3)"], ids=["exception", "exit"])
def test_a_rank_that_fails_in_the_backward_pass_ends_the_job(what: str) -> None:
    """Nothing in the program catches anything; the others name the rank (a hang is a LaunchTimeout)."""
    done = mpirun(3, [sys.executable, "-c", FAILS.format(what=what)], 60)
    assert done.returncode != 0
    assert "rank 1 ended in the middle of a step" in done.stderr, done.stderr


SERIALIZED = """
import gc, threading
import mpi4py
mpi4py.rc.thread_level = "serialized"
from mpi4py import MPI
import numpy as np, mpicoll
from mpicoll.agree import Agreement
comm, multiple = MPI.COMM_WORLD, MPI.Query_thread() == MPI.THREAD_MULTIPLE
grads = {f"w{i}": np.zeros(1000, "f") for i in range(4)}
with mpicoll.GradientReducer(comm, grads, bucket_bytes=4000, background=True) as reducer:
    for step in range(20):
        for name, gradient in grads.items():
            gradient[:] = comm.rank + step
            reducer.ready(name)
        reducer.wait()
        assert all((gradient == 0.5 + step).all() for gradient in grads.values())
    assert len(reducer.flights) == 4 and all(plan.background for plan in reducer._plans)

# A reducer with an open step that another thread's garbage collection finds.
reducer, told, revoke = mpicoll.GradientReducer(comm, grads), [], Agreement.revoke
reducer.ready("w0")
if comm.rank == 0:
    def note(self, why, **options):
        told.append(threading.current_thread().name)
        revoke(self, why, **options)
    Agreement.revoke = note
    kept = [reducer]
    del reducer
    thread = threading.Thread(target=lambda: (kept.clear(), gc.collect()), name="collector")
    thread.start()
    thread.join()
    assert told == (["collector"] if multiple else []), told
mpicoll.Comm(comm)
if comm.rank == 0:
    assert told == (["collector"] if multiple else ["MainThread"]), told
else:
    try:
        for name in ("w1", "w2", "w3"):
            reducer.ready(name)
        reducer.wait()
    except mpicoll.RevokedError as error:
        assert "rank 0 ended in the middle of a step" in str(error)
        print("heard", flush=True)
"""


def test_at_mpi_thread_serialized() -> None:
    """The background thread moves buckets, and no finalizer calls MPI beside another thread."""
    done = mpirun(2, [sys.executable, "-c", SERIALIZED], 60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["heard"]


@pytest.mark.parametrize(
    ("flags", "env", "message"),
    [
        (["--layers", "0"], {}, "--layers must be at least 1"),
        (["--policy", "1,2,3,4"], {}, "five whole numbers"),
        (["--thread-level", "funneled"], {}, "level funneled: --thread-level serialized, or --progress test"),
        (["--algorithm", "rnig"], {}, "rnig"),
        (
            ["--width", "100000"],
            {},
            "18 networks of 8 layers of 100000 and 64 rows need .* GiB a rank, and the machine has",
        ),
        (["--buffer", "cupy"], {"FAKE_CUPY_DEVICES": "0"}, "--buffer cupy: this rank has no device"),
    ],
)
def test_wrong_arguments(flags: list[str], env: dict[str, str], message: str) -> None:
    """The same on all ranks, said once; more of them in tests/unit/test_overlap_bench.py."""
    done = mpirun(2, [sys.executable, "-m", "mpicoll", "overlap", *flags], 60, with_fake_device() | env)
    assert done.returncode == 2
    assert len(re.findall(f"mpicoll: .*{message}", done.stderr)) == 1, done.stderr
    assert "Traceback" not in done.stderr


def with_fake_device() -> dict[str, str]:
    return {
        "PYTHONPATH": os.pathsep.join([str(FAKE), os.environ.get("PYTHONPATH", "")]),
        "MPICOLL_GPU_AWARE": "1",
    }


def test_a_network_in_device_memory(tmp_path: Path) -> None:
    """On a fake device, which runs kernels as late as it may: without a wait, ranks would differ."""
    argv = [sys.executable, "-m", "mpicoll", *OVERLAP, "--buffer", "cupy", "-o", tmp_path]
    done = mpirun(2, argv, 100, with_fake_device())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of gradients in device memory (cupy), 2 ranks" in done.stdout
    rows, torn = overlap_file.read(tmp_path, 5 + 2)
    assert not torn
    assert {row["buffer"] for row in rows} == {"cupy"}
    assert {(row["progress"], row["engine"]) for row in rows} == {("test", "python")}
    launch = json.loads((tmp_path / "run.json").read_text())["launches"][0]
    assert launch["devices"][0]["name"] == "a fake device in host memory"
    for rank in range(2):
        events = json.loads((tmp_path / f"trace-rank{rank}.json").read_text())["traceEvents"]
        names = {e["name"] for e in events if e.get("cat") == "device" and e["pid"] == 0}
        assert names == {"forward", "backward 0", "backward 1", "backward 2", "wait", "update"}
    assert "device memory (a fake device" in "".join(overlap_section.words(overlap_section.Run(tmp_path)))


def test_communication_that_runs_first_has_no_loss_to_compare_with() -> None:
    """With this seed it is the first mode of all; its loss is not a number."""
    done = mpirun(2, [sys.executable, "-m", "mpicoll", *OVERLAP[:-1], "0"], 100)
    assert done.returncode == 0, done.stderr


def test_a_result_is_not_overwritten_and_a_wrong_one_is_reported(
    measured: tuple[Path, str], tmp_path: Path
) -> None:
    done = mpirun(2, [sys.executable, "-m", "mpicoll", *OVERLAP, "-o", measured[0]], 100)
    assert done.returncode == 2
    assert "already holds a result; continue it with --resume, or choose another -o" in done.stderr
    path = measured[0] / "overlap.csv"
    before = path.read_bytes()
    again = [sys.executable, "-m", "mpicoll", *OVERLAP, "-o", measured[0], "--resume"]
    done = mpirun(2, again, 100)
    assert (done.returncode, done.stdout) == (0, measured[1])  # all is there: nothing is measured
    other = mpirun(2, [*again, "--seed", "4"], 100)
    assert other.returncode == 2
    assert "choose another -o:\n  spec.seed: '3' → '4'\n" in other.stderr
    assert path.read_bytes() == before
    shutil.copytree(measured[0], tmp_path / "r")
    path = tmp_path / "r" / "overlap.csv"
    path.write_text(path.read_text().replace(",ok,", ",wrong,"))
    words = ["report", tmp_path / "r", "--no-figures"]
    assert mpirun(1, [sys.executable, "-m", "mpicoll", *words], 100).returncode == 1
    whole = path.read_text()
    path.write_text(whole[: len(whole) * 2 // 3])
    said = overlap_section.hazards(overlap_section.Run(tmp_path / "r"))
    assert "NOT WHOLE: 3 of 6 steps; continue with --resume." in said
    assert "An unfinished step at the end is left out." in said
    for cut, message in (
        (whole[: len(whole) // 10], "no finished step"),
        ("another,program\n", "other columns"),
        (None, "cannot read"),
    ):
        path.unlink() if cut is None else path.write_text(cut)
        with pytest.raises(StoreError, match=message):
            overlap_section.Run(tmp_path / "r")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_was_stopped_goes_on(number: int, tmp_path: Path) -> None:
    """What becomes of a killed rank is the launcher's to say: it ends the others before they could."""
    target, iterations = tmp_path / "r", 400
    words = [*OVERLAP, "--iterations", str(iterations), "-o", str(target)]
    status, said = stop(words, target, number)
    launch = json.loads((target / "run.json").read_text())["launches"][0]
    if number == signal.SIGINT:
        assert status == 128 + number, said
        assert "mpicoll: stopped by SIGINT; what was measured is recorded, continue with" in said
        assert "Traceback" not in said
        assert launch["status"] == "stopped by SIGINT"
    else:
        assert status != 0
        assert re.search(r"signal 9 \(Killed\)|Killed \(signal 9\)", said)
        assert launch["status"] == "running"
    kept = (target / "overlap.csv").read_bytes()
    done = mpirun(2, [sys.executable, "-m", "mpicoll", *words, "--resume"], 100)
    assert done.returncode == 0, done.stderr
    rows, torn = overlap_file.read(target, 9)
    assert not torn
    whole = overlap_file.parse(kept, 9, "before")[1]
    assert (target / "overlap.csv").read_bytes().startswith(kept[:whole])
    timed = Counter(row["iteration"] for row in rows if not row["warmup"])
    assert timed == dict.fromkeys(range(iterations), 9)
    assert {row["launch"] for row in rows} == {0, 1}
    assert "hidden" in done.stdout
    assert [one["status"] for one in json.loads((target / "run.json").read_text())["launches"]] == [
        launch["status"], "complete",
    ]  # fmt: skip


def stop(words: list[str], target: Path, number: int) -> tuple[int, str]:
    """Begin a run, and send a signal to its last rank once some rows are there: status, and what was said."""
    launcher = find_mpirun()
    with scratch_directory() as scratch, subprocess.Popen(
        [launcher, "-n", "2", sys.executable, "-m", "mpicoll", *words], env=environment(launcher, scratch),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            deadline = time.monotonic() + 60
            while not (target / "overlap.csv").exists():
                assert time.monotonic() < deadline
                assert process.poll() is None, process.stdout
                time.sleep(0.02)
            running = descendants(process.pid)
            ranks = [pid for pid in running if Path(f"/proc/{pid}/exe").samefile(sys.executable)]
            os.kill(ranks[-1], number)
            said, _ = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                kill_tree(process)
    return process.returncode, said
