"""Whole sweeps under the real mpirun: measured, proved, refused, stopped, killed and continued."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from launch import descendants, environment, find_mpirun, flavour, kill_tree, mpirun, scratch_directory
from mpicoll.bench.store import COLUMNS

TIMEOUT = 90
SMALL = ["--sizes", "4,1K,64K", "--iterations", "6", "--warmup", "2"]
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
    result = sweep(2, directory, *SMALL, *FEW, "--engine", "both", "--dtype", "float32,int16")
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
    result = sweep(3, tmp_path / "r", "--collective", names, *options)
    assert result.returncode == 0, result.stderr
    rows = samples(tmp_path / "r")
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

    assert sweep(3, tmp_path / "3", *SMALL, *options, *names).returncode == 0
    (row, *_) = [row for row in samples(tmp_path / "3") if row["requested"] == "swap"]
    assert (row["status"], row["seconds"], row["iteration"]) == ("unsupported", "", "")
    assert "two ranks only" in row["reason"]


DROPS = """
from mpicoll import Window, algorithm
from mpicoll.schedule import exchange

@algorithm("allreduce", blocks=lambda size, p: 1)
def drops(rank, size):
    "Takes the neighbour's vector for the sum of all."
    yield exchange((rank + 1) % size, (Window(0),), (Window(0),), source=(rank - 1) % size)
"""
SPOILS = """
from mpicoll.bench import measure
honest = measure.build

def build(contender, work, own, plain):
    made = honest(contender, work, own, plain)
    if contender.name == "builtin" and work.rank == 1 and work.case.count > 5:
        call, calls = made.call, []
        def spoilt():
            call()
            calls.append(1)
            {spoil}
        made.call = spoilt
    return made

measure.build = build
"""


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        ("work.recv.array[5] += 0.5", "first call: rank 1 element 5: expected"),
        # Right at first, wrong from the third call on: only the check after timing can see it.
        ("work.recv.array[5] += len(calls) > 2", "after timing: rank 1 element 5: expected"),
        ("work.recv.after[3] = 99", "rank 1: written outside of the buffer"),
        ("work.send.array[0] += 1", "rank 1: the send buffer was changed"),
    ],
    ids=["off by a half", "wrong later", "out of bounds", "input changed"],
)
def test_a_spoilt_collective_is_caught(tmp_path, load, spoil, words):
    options = load(SPOILS.format(spoil=spoil))
    wrong = wrong_rows(tmp_path / "r", *options, "--algorithms", "ring,builtin")
    assert {row["requested"] for row in wrong} == {"builtin"}
    assert all(words in row["reason"] for row in wrong)


def test_an_algorithm_that_drops_a_rank_is_caught(tmp_path, load):
    wrong = wrong_rows(tmp_path / "r", *load(DROPS), "--algorithms", "drops,builtin")
    assert {row["requested"] for row in wrong} == {"drops"}
    assert all(re.match(r"first call: rank \d element \d+: expected .*found", row["reason"]) for row in wrong)
    assert {row["seconds"] for row in wrong} == {""}


def wrong_rows(directory, *options):
    result = sweep(2, directory, *SMALL, *options)
    assert result.returncode == 1, result.stderr
    assert "WRONG RESULTS" in result.stderr
    wrong = [row for row in samples(directory) if row["status"] == "wrong"]
    assert wrong
    return wrong


def test_a_rank_that_fails_alone_ends_the_job(tmp_path, load):
    """And it does so at once, with the reason, though the others are in the middle of a collective."""
    begun = time.monotonic()
    result = sweep(2, tmp_path / "r", *SMALL, *FEW, *load(SPOILS.format(spoil="1 / (len(calls) < 4)")))
    assert result.returncode not in (0, 2)
    assert "rank 1 failed" in result.stderr
    assert "ZeroDivisionError" in result.stderr
    assert time.monotonic() - begun < 60


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


def test_a_disk_that_takes_no_more_is_said_and_continued(tmp_path, load):
    limit = load(FULL)
    result = sweep(2, tmp_path / "r", *SMALL, *FEW, *limit)
    assert result.returncode == 1
    assert re.search(r"mpicoll: cannot write to .*File too large", result.stderr)
    whole = samples(tmp_path / "r")
    assert len({row["case"] for row in whole}) * 32 == len(whole)
    assert sweep(2, tmp_path / "r", *SMALL, *FEW, "--resume").returncode == 0
    assert Counter(row["case"] for row in samples(tmp_path / "r")) == {"0": 32, "1": 32, "2": 32}


LONG = [
    *("--sizes", "4:4K:2", "--iterations", "4000", "--warmup", "1", "--case-time", "0.3"),
    *("--algorithms", "ring,builtin"),
]


def interrupted(directory, number, *, rank):
    """A long sweep that gets a signal (a rank, or mpirun) in its middle; exit status, seconds it took."""
    launcher = find_mpirun()
    with scratch_directory() as scratch, subprocess.Popen(
        [launcher, "-n", "2", sys.executable, "-m", "mpicoll", "sweep", "-o", directory, *LONG],
        env=environment(launcher, scratch), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            deadline = time.monotonic() + 60
            while not (directory / "samples.csv").exists() or len(samples(directory)) < 100:
                assert time.monotonic() < deadline
                assert process.poll() is None, process.stdout.read()
                time.sleep(0.02)
            ranks = [pid for pid in descendants(process.pid) if is_python(pid)]
            assert len(ranks) == 2
            begun = time.monotonic()
            os.kill(ranks[1] if rank else process.pid, number)
            process.wait(TIMEOUT)
            return process.returncode, time.monotonic() - begun
        finally:
            if process.poll() is None:
                kill_tree(process)


def is_python(pid):
    try:
        return Path(f"/proc/{pid}/exe").samefile(sys.executable)
    except OSError:
        return False


def completed(directory):
    """Continue a sweep to its end: every case is there, whole and once."""
    before = samples_of_whole_cases(directory)
    result = sweep(2, directory, *LONG, "--resume")
    assert result.returncode == 0, result.stderr
    rows = samples(directory)
    first = {row["case"]: row for row in reversed(rows)}
    assert sorted(map(int, first)) == list(range(11))
    for case, count in Counter(row["case"] for row in rows).items():
        assert count == int(first[case]["case_rows"])
    assert before == [row for row in rows if row["launch"] == "0"]
    assert {row["launch"] for row in rows} == {"0", "1"}


def samples_of_whole_cases(directory):
    rows = [row for row in samples(directory) if row["reason"] is not None]
    count = Counter(row["case"] for row in rows)
    return [row for row in rows if count[row["case"]] == int(row["case_rows"])]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("rank", [True, False], ids=["to a rank", "to mpirun"])
def test_a_stopped_sweep_ends_soon_and_continues(tmp_path, number, rank):
    status, seconds = interrupted(tmp_path / "r", number, rank=rank)
    # Open MPI's mpirun has an exit status of its own for signals sent to itself.
    if rank or flavour(find_mpirun()) == "mpich":
        assert status == 128 + number
    else:
        assert status != 0
    assert seconds < 30
    assert re.match("stopped by SIG", run_json(tmp_path / "r")["launches"][0]["status"])
    completed(tmp_path / "r")


def test_a_killed_rank_costs_the_case_in_flight_only(tmp_path):
    status, _ = interrupted(tmp_path / "r", signal.SIGKILL, rank=True)
    assert status != 0
    completed(tmp_path / "r")


def test_other_conditions_are_not_continued(measured):
    before = (measured[0] / "samples.csv").read_bytes()
    both = [*FEW, "--engine", "both", "--dtype", "float32,int16", "--resume"]
    result = sweep(2, measured[0], *SMALL, *both, "--seed", "9")
    assert result.returncode == 2
    assert result.stderr.count("was measured under other conditions") == 1
    assert "spec:" in result.stderr
    assert sweep(3, measured[0], *SMALL, *both).returncode == 2
    assert sweep(2, measured[0], *SMALL, *both[:-1]).returncode == 2
    assert (measured[0] / "samples.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--algorithms", "rings"], "unknown algorithm 'rings'; known: .*ring"),
        (["--algorithms", "ring:chanels=2"], "has no parameter chanels"),
        (["--collective", "allreduc"], "unknown collective 'allreduc'"),
        (["--sizes", "9:1"], "needs min <= max"),
        (["--iterations", "0"], "iterations = 0: needs a whole number from 1 on"),
        (["--iterations", "many"], "invalid int value: 'many'"),
        (["none.toml"], "cannot read none.toml"),
        (["--load", "none.py"], "cannot read none.py"),
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
        'sizes = "8"\nalgorithms = ["ring"]\niterations = 3\nwarmup = 0\nthread-level = "multiple"\n'
    )
    result = sweep(2, tmp_path / "r", spec, "--iterations", "4")
    assert result.returncode == 0, result.stderr
    rows = samples(tmp_path / "r")
    assert len(rows) == 4
    assert {row["thread_level"] for row in rows} == {"multiple"}
    spec.write_text("size = 8\n")
    result = sweep(2, tmp_path / "s", spec)
    assert result.returncode == 2
    assert result.stderr.count("unknown setting size") == 1


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
