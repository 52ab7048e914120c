"""Whole sweeps under the real mpirun: measured, proved and refused. (Stopped: `test_stopped.py`.)"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from launch import mpirun
from mpicoll.bench.foreign import read_nccl, read_osu
from mpicoll.bench.store import COLUMNS
from mpicoll.cost import uniform

TIMEOUT = 90
SMALL = ["--sizes", "4,1K,64K", "--iterations", "6", "--warmup", "2"]
CALIBRATED = uniform(1e-6, 1e-10, name="made for this test")
FEW = ["--algorithms", "ring,recursive_doubling,builtin,builtin_persistent"]


def sweep(n, directory, *options, env=None):
    argv = [sys.executable, "-m", "mpicoll", "sweep", "-o", directory, *options]
    return mpirun(n, argv, TIMEOUT, env=env)


def samples(directory):
    with (directory / "samples.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def run_json(directory):
    return json.loads((directory / "run.json").read_text())


@pytest.fixture
def load(tmp_path):
    """Write a file for ``--load``."""

    def write(text):
        path = tmp_path / "load.py"
        path.write_text(text)
        return ["--load", path]

    return write


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """One good sweep on two ranks, with both engines."""
    directory = tmp_path_factory.mktemp("sweep") / "run"
    calibration = directory.with_name("calibration.json")
    calibration.write_text(CALIBRATED.to_json())
    env = {"MPICOLL_CALIBRATION": str(calibration)}
    result = sweep(2, directory, *SMALL, *FEW, "--engine", "both", "--dtype", "float32,int16", env=env)
    assert result.returncode == 0, result.stderr
    return directory, result


def test_every_sample_is_a_row(measured):
    rows = samples(measured[0])
    assert tuple(rows[0]) == COLUMNS
    assert {row["status"] for row in rows} == {"ok"}
    per_case = Counter(row["case"] for row in rows)
    # 2 algorithms on 2 engines and 2 builtins, 6 + 2 iterations.
    assert per_case == {str(case): 6 * 8 for case in range(6)}
    assert {int(row["case_rows"]) for row in rows} == {48}
    assert {(row["dtype"], row["msg_bytes"]) for row in rows} == {
        (dtype, str(size)) for dtype in ("float32", "int16") for size in (4, 1024, 65536)
    }


def test_contenders_run_interleaved_in_shuffled_order(measured):
    orders = {}
    for row in samples(measured[0]):
        if row["warmup"] == "0":
            orders.setdefault((row["case"], row["iteration"]), []).append(int(row["order"]))
    assert all(sorted(order) == list(range(6)) for order in orders.values())
    assert len(set(map(tuple, orders.values()))) > 5


def test_a_sample_is_the_slowest_ranks_time(measured):
    for row in samples(measured[0]):
        slow, fast = float(row["seconds"]), float(row["seconds_min"])
        assert 0 < fast <= slow < 60
        assert float(row["skew"]) == pytest.approx(slow - fast, abs=2e-9)
        assert row["slowest_rank"] in "01"
        assert float(row["first_seconds"]) > 0


def test_rows_say_who_ran(measured):
    columns = ("implementation", "requested", "algorithm", "engine", "rounds")
    who = {tuple(row[name] for name in columns) for row in samples(measured[0])}
    assert who == {
        ("mpicoll", name, name, engine, rounds)
        for name, rounds in (("ring", "2"), ("recursive_doubling", "1"))
        for engine in ("native", "python")
    } | {("mpi", "builtin", "builtin", "", ""), ("mpi", "builtin_persistent", "builtin_persistent", "", "")}


def test_provenance_is_recorded(measured):
    run = run_json(measured[0])
    (launch,) = run["launches"]
    assert launch["status"] == "complete"
    assert launch["mpi"]["thread_level"] == "funneled"
    assert {row["thread_level"] for row in samples(measured[0])} == {"funneled"}
    assert [place["rank"] for place in launch["placement"]] == [0, 1]
    assert "-o" in launch["command"]
    what = {(row["what"], row["engine"]) for row in launch["overheads"]}
    assert {
        ("empty_plan", "native"),
        ("empty_plan", "python"),
        ("round", "native"),
        ("round", "python"),
    } <= what
    assert all(row["seconds"] > 0 for row in launch["overheads"])
    assert run["identity"]["spec"]["iterations"] == 6
    assert run["identity"]["calibration"] == launch["calibration"]["digest"] == CALIBRATED.digest
    assert {plan["iterations"] for plan in run["plans"].values()} == {6}


def test_a_line_is_printed_for_each_case(measured):
    error, out = measured[1].stderr, measured[1].stdout
    numbers = re.findall(r"^\[(\d)/6\] all-reduce", error, re.MULTILINE)
    assert numbers == list("123456")
    assert re.search(r"float32 sum 64 KiB; \w+ \(\w+\) .*of builtin; builtin ", error)
    assert "6 cases in" in out
    assert "mpicoll report" in out


def test_every_collective_is_proved_and_measured(tmp_path):
    """All collectives on three ranks, rooted ones from root 2; all own algorithms, or the reason why not."""
    names = "allreduce,reduce_scatter,allgather,bcast,reduce,alltoall,gather,scatter"
    options = ["--sizes", "0,40", "--iterations", "1", "--warmup", "0", "--root", "2"]
    result = sweep(3, tmp_path / "r", "--collective", names, *options, "--format", "osu")
    assert result.returncode == 0, result.stderr
    rows = samples(tmp_path / "r")
    # Standard output is a text of OSU's, and says the same.
    printed = [
        (table.collective, line.nbytes, line.seconds) for table in read_osu(result.stdout).tables
        for line in table.lines
    ]  # fmt: skip
    assert sorted(printed) == sorted(
        (row["collective"], int(row["msg_bytes"]), float(f"{1e6 * float(row['seconds']):.2f}") * 1e-6)
        for row in rows
        if row["status"] == "ok"
    )
    assert Counter(row["status"] for row in rows if row["implementation"] == "mpi") == {"ok": 8 * 2 * 2}
    assert all(row["reason"] for row in rows if row["status"] != "ok")
    assert {r["collective"] for r in rows if r["implementation"] == "mpicoll" and r["status"] == "ok"} == set(
        names.split(",")
    )


def test_a_user_algorithm_competes_and_one_that_cannot_serve_is_recorded(tmp_path, load):
    options = load("""
from mpicoll import Side, Window, algorithm
from mpicoll.schedule import exchange

def pair(size, params):
    return None if size == 2 else "two ranks only"

@algorithm("allreduce", blocks=lambda size, p: 1, requires=pair)
def swap(rank, size, *, unused=1):
    "Two ranks exchange everything."
    yield exchange(1 - rank, (Window(0),), (Window(0),), Side.LEFT if rank else Side.RIGHT)
""")
    names = ["--algorithms", "swap,swap:unused=2,builtin"]
    assert sweep(2, tmp_path / "2", *SMALL, *options, *names).returncode == 0
    found = {(row["requested"], row["params"]) for row in samples(tmp_path / "2")}
    assert found == {("swap", "unused=1"), ("swap:unused=2", "unused=2"), ("builtin", "")}
    (loaded,) = json.loads((tmp_path / "2" / "run.json").read_text())["launches"][0]["loaded"]
    assert (loaded["file"], loaded["algorithms"]) == (str(options[1]), ["allreduce/swap"])

    assert sweep(3, tmp_path / "3", *SMALL, *options, *names).returncode == 0
    (row, *_) = [row for row in samples(tmp_path / "3") if row["requested"] == "swap"]
    assert (row["status"], row["seconds"], row["iteration"]) == ("unsupported", "", "")
    assert "two ranks only" in row["reason"]


PLANTED = Path(__file__).with_name("planted.py")


@pytest.fixture(scope="module")
def tampered(tmp_path_factory):
    """A sweep on four ranks with six wrong all-reduces among right ones."""
    directory = tmp_path_factory.mktemp("planted") / "run"
    names = "drops_and_doubles,ring,recursive_doubling,circulant,swing,bine,allgather_reduce,builtin"
    few = ["--sizes", "40,4K", "--iterations", "3", "--warmup", "2", "--prime-below", "0"]
    return directory, sweep(4, directory, *few, "--load", PLANTED, "--algorithms", names)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("drops_and_doubles", r"first call: rank \d element \d+: expected .*, found"),
        ("ring", r"first call: rank \d element 5: expected (\d+)\.0, found \1\.5"),
        ("recursive_doubling", "first call: rank 2 element 3: expected"),
        ("circulant", r"after timing: rank \d element 7: expected"),
        ("swing", "first call: rank 1: written outside of the buffer"),
        ("bine", "first call: rank 3: the send buffer was changed"),
    ],
    ids=["drops a rank", "off by a half", "other bytes", "wrong later", "out of bounds", "input changed"],
)
def test_a_wrong_collective_is_caught(tampered, name, words):
    rows = [row for row in samples(tampered[0]) if row["requested"] == name]
    assert {row["case"] for row in rows} == {"0", "1"}
    assert {row["status"] for row in rows} == {"wrong"}
    assert all(re.match(words, row["reason"]) for row in rows), rows[0]["reason"]
    # What was wrong at once is not timed; what was wrong later, is flagged.
    assert {bool(row["seconds"]) for row in rows} == {name == "circulant"}


def test_right_collectives_among_wrong_ones_are_measured(tampered):
    directory, result = tampered
    assert result.returncode == 1, result.stderr
    assert "WRONG RESULTS" in result.stderr
    rows = samples(directory)
    assert {row["requested"] for row in rows if row["status"] == "ok"} == {"allgather_reduce", "builtin"}
    # The loaded file imports mpi4py.MPI, and yet the level is the one asked for.
    assert {row["thread_level"] for row in rows} == {"funneled"}


FAILS = """
from mpicoll.bench import measure
honest = measure.build

def build(contender, work, own, plain):
    made = honest(contender, work, own, plain)
    if work.rank == 1 and contender.name == "builtin":
        call, calls = made.call, []
        def failing():
            call()
            calls.append(1)
            1 / (len(calls) < 4)
        made.call = failing
    return made

measure.build = build
"""


def test_a_rank_that_fails_alone_ends_the_job(tmp_path, load):
    """And it does so at once, with the reason, though the others are in the middle of a collective."""
    begun = time.monotonic()
    result = sweep(2, tmp_path / "r", *SMALL, *FEW, *load(FAILS))
    assert result.returncode not in (0, 2)
    assert "rank 1 failed" in result.stderr
    assert "ZeroDivisionError" in result.stderr
    assert time.monotonic() - begun < 60


def test_other_conditions_are_not_continued(measured):
    before = (measured[0] / "samples.csv").read_bytes()
    both = [*FEW, "--engine", "both", "--dtype", "float32,int16", "--resume"]
    result = sweep(2, measured[0], *SMALL, *both, "--seed", "9")
    assert result.returncode == 2
    assert result.stderr.count("was measured under other conditions") == 1
    assert "\n  spec.seed: 1 → 9\n" in result.stderr
    assert "sizes" not in result.stderr
    assert sweep(3, measured[0], *SMALL, *both).returncode == 2
    assert (measured[0] / "samples.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--algorithms", "rings"], "unknown algorithm 'rings'; known: .*ring"),
        (["--iterations", "many"], "invalid int value: 'many'"),
        (["none.toml"], "cannot read none.toml"),
        (["--load", "none.py"], "cannot read none.py"),
        (["--sizes", "999T"], "allreduce of 999 TiB \\(float32\\): the buffers of 2 ranks take"),
    ],
)
def test_wrong_usage_is_said_once_with_status_2(tmp_path, options, words):
    result = sweep(2, tmp_path / "r", *options)
    assert result.returncode == 2, result.stderr
    assert len(re.findall(words, result.stderr)) == 1
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "r").exists()


def test_a_spec_file_has_the_flags_names(tmp_path):
    spec = tmp_path / "spec.toml"
    spec.write_text(
        'sizes = "8"\nalgorithms = ["ring"]\niterations = 3\nwarmup = 0\nbatch = 5\n'
        'thread-level = "multiple"\n'
    )
    result = sweep(2, tmp_path / "r", spec, "--iterations", "4", "--format", "nccl")
    assert result.returncode == 0, result.stderr
    rows = samples(tmp_path / "r")
    ((table,), mean) = read_nccl(result.stdout, ranks=2).tables, sum(float(r["seconds"]) for r in rows) / 4
    assert [(one.nbytes, one.seconds) for one in table.lines] == [(8, pytest.approx(mean, abs=6e-9))]
    assert "1 cases in" in result.stderr
    assert len(rows) == 4
    assert {(row["thread_level"], row["batch"]) for row in rows} == {("multiple", "5")}


def test_calls_begin_at_an_agreed_moment_and_with_cold_buffers(tmp_path):
    options = ["--sync", "window", "--cache", "warm,cold", "--sizes", "64,512K", "--iterations", "12"]
    options += ["--precision", "0", "--warmup", "2", "--case-time", "1s"]
    result = sweep(2, tmp_path / "r", *options, *FEW)
    assert result.returncode == 0, result.stderr
    rows = samples(tmp_path / "r")
    assert {row["sync"] for row in rows} == {"window"}
    assert {(row["cache"], row["msg_bytes"]) for row in rows} == {
        (cache, size) for cache in ("warm", "cold") for size in ("64", "524288")
    }
    timed = [row for row in rows if row["warmup"] == "0"]
    assert all(float(row["start_skew"]) >= 0 for row in timed)
    for number, plan in run_json(tmp_path / "r")["plans"].items():
        good = Counter(row["requested"] for row in timed if row["case"] == number and row["late"] == "0")
        # Late ones were taken again, unless the budget of the case was spent.
        assert plan["stopped_by"] == "case_time" or min(good.values()) >= 12
    clocks = run_json(tmp_path / "r")["launches"][0]["clocks"]
    assert [set(one) for one in clocks] == [{"offset", "drift", "round_trip"}] * 2
    # One machine, one clock: what is found is the error, and no larger than half of a round trip.
    assert abs(clocks[1]["offset"]) <= clocks[1]["round_trip"] / 2 + 1e-9


def alone(*argv, env=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI_", "SLURM_"))}
    command = [sys.executable, "-m", "mpicoll", *map(str, argv)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT, check=False, env=clean | (env or {})
    )


def test_one_rank_is_measured_with_a_notice(tmp_path):
    result = alone("sweep", "-o", tmp_path / "r", *SMALL, *FEW)
    assert result.returncode == 0, result.stderr
    assert "a world of one rank communicates nothing" in result.stderr
    assert len(samples(tmp_path / "r")) == 3 * 4 * 8


BREAKS = """
from mpicoll.bench import measure
from mpicoll.errors import MpicollError
honest = measure.build

def build(contender, work, own, plain):
    if contender.name == "ring" and work.case.msg_bytes > 4:
        raise MpicollError("no ring today")
    return honest(contender, work, own, plain)

measure.build = build
"""


def test_who_could_not_be_measured_is_said_at_the_end(tmp_path, load):
    """And if that is all of them, the answer is no."""
    options = ["--sizes", "4,1K", "--iterations", "2", *load(BREAKS)]
    result = alone("sweep", "-o", tmp_path / "r", *options, "--algorithms", "ring,builtin")
    assert result.returncode == 0, result.stderr
    assert result.stderr.endswith("mpicoll: ring (auto): error in 1 of 2 cases: no ring today\n")
    result = alone("sweep", "-o", tmp_path / "n", *options, "--op", "band", "--algorithms", "builtin")
    assert result.returncode == 1
    lines = result.stderr.splitlines()[-2:]
    assert lines == [
        "mpicoll: NOTHING WAS MEASURED",
        "mpicoll: builtin: unsupported in 2 of 2 cases: MPI does not define BAND on float32",
    ]


@pytest.mark.parametrize(
    "env", [{"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, {"PALS_SIZE": "4", "PALS_RANKID": "0"}]
)
def test_a_launcher_of_another_mpi_is_noticed(tmp_path, env):
    result = alone("sweep", "-o", tmp_path / "r", *SMALL, *FEW, env=env)
    assert result.returncode == 2
    assert "the launcher started 4 ranks, but MPI sees a world of 1" in result.stderr
    assert not (tmp_path / "r").exists()


def test_info_says_what_spoils_the_numbers():
    ranks = (os.cpu_count() or 1) + 1
    argv = [sys.executable, "-m", "mpicoll", "info"]
    result = mpirun(ranks, argv, TIMEOUT)
    assert result.returncode == 0, result.stderr
    where = re.search(r"^  node 0 .* ranks \(CPUs\)(.*)", result.stdout, re.MULTILINE)
    assert where
    assert re.findall(r" (\d+) \(", where[1]) == [str(rank) for rank in range(ranks)]
    for words in ("oversubscribed", "thread level funneled", "engine    native", "fix     "):
        assert words in result.stdout
    assert mpirun(ranks, [*argv, "--strict"], TIMEOUT).returncode == 1
    facts = json.loads(mpirun(2, [*argv, "--json", "--thread-level", "multiple"], TIMEOUT).stdout)
    assert facts["mpi"]["thread_level"] == "multiple"
    assert any("thread level multiple" in hazard["what"] for hazard in facts["hazards"])


def test_stages_are_timed_beside_the_race(tmp_path):
    directory = tmp_path / "run"
    few = ["--sizes", "4K", "--iterations", "3", "--algorithms", "two_level,ring,builtin", "--stages"]
    result = sweep(2, directory, *few, "--case-time", "100ms")
    assert result.returncode == 0, result.stderr
    with (directory / "stages.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = {}
    for row in rows:
        found.setdefault(row["requested"], set()).add(row["stage"])
        assert 0 < float(row["path_seconds"]) <= float(row["seconds"])
    assert found == {"two_level": {"intra reduce-scatter", "intra all-gather"}, "ring": {"all"}}
    assert {row["requested"] for row in samples(directory)} == {"two_level", "ring", "builtin"}
