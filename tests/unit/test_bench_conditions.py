"""Where a sweep runs: what is found out about machine, job and placement, and what it is called."""

import gc
import os
import random
import re
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from mpicoll.bench import cli, cold, hazards, machine, world
from mpicoll.bench.cases import Case
from mpicoll.bench.check import different_bytes, digest
from mpicoll.bench.info import as_text, describe
from mpicoll.bench.progress import summary_line
from mpicoll.bench.timing import cost_of, measure, no_garbage_collection, orders, timer_facts
from mpicoll.errors import ArgumentError
from mpicoll.locality import parse_cpus
from mpicoll.topology import Topology

NATIVE = (True, "available")
KNOWN = {
    "cpu_model": "Test CPU",
    "architecture": "x86_64",
    "logical_cpus": 64,
    "physical_cores": 32,
    "governor": "performance",
    "turbo": "off",
    "virtual": False,
}


def job(nodes, cpus, *, numa=(), machines=(), quota=None, thread_level="funneled", vendor="V 1", **facts):
    """A `World` as ranks on `nodes` with these CPU masks would see it."""
    size = len(nodes)
    return world.World(
        control=None,
        rank=0,
        size=size,
        thread_level=thread_level,
        hosts=[f"host{node}" for node in nodes],
        cpus=list(cpus),
        topology=Topology(tuple(nodes), numa_of=numa, machine_of=machines),
        quota=[quota] * size,
        machine={**KNOWN, **facts},
        software={"python": "3", "mpicoll": None, "mpi4py": "4", "numpy": "2", "git": None},
        library="L",
        vendor=vendor,
    )


SLURM = {"SLURM_PROCID": "0", "SLURM_NTASKS": "9"}


def found(job, native=NATIVE):
    return [hazard.what for hazard in hazards.find_hazards(job, native)]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    """An idle machine with nothing in the environment, whatever the one that runs the tests is like."""
    for name in machine.environment():
        monkeypatch.delenv(name)
    for rank, size in world._LAUNCHERS:
        monkeypatch.delenv(rank, raising=False)
        monkeypatch.delenv(size, raising=False)


@pytest.mark.parametrize(
    ("vendor", "slurm", "fix"),
    [
        ("MPICH 5.0.2", False, "mpirun --bind-to core"),
        ("Open MPI 5.0.11", True, "mpirun --bind-to core; or srun --cpu-bind=cores"),
        ("V 1", False, "MPICH: mpirun --bind-to core; or Open MPI: mpirun --bind-to core"),
    ],
)
def test_the_flag_that_binds_is_that_of_the_mpi_that_runs(monkeypatch, vendor, slurm, fix):
    if slurm:
        monkeypatch.setenv("SLURM_JOB_ID", "1")
    (found,) = [
        h for h in hazards.find_hazards(shared("0-3", "0-3", vendor=vendor), (True, "")) if "bound" in h.what
    ]
    assert found.fix == fix


def test_a_command_that_continues_binds_ranks_that_were_bound():
    assert hazards.as_bound(two(vendor="MPICH 5.0.2")) == ""  # one rank on each node: nothing to see
    assert hazards.as_bound(shared("0", "1", vendor="MPICH 5.0.2")) == " --bind-to core"
    assert hazards.as_bound(shared("0-1", "0-1", vendor="MPICH 5.0.2")) == ""


def test_a_good_job_has_no_hazards():
    assert found(job([0, 0, 1, 1], ["0", "1", "0", "1"])) == []


def two(**more):
    return job([0, 1], ["0", "1"], **more)


def shared(*cpus, **more):
    return job([0] * len(cpus), cpus, **more)


@pytest.mark.parametrize(
    ("what", "good", "bad"),
    [
        ("oversubscribed: 3 ranks share 2 CPUs on host0", shared("0", "1"), shared("0", "1", "0-1")),
        ("oversubscribed: 2 ranks share 1 CPUs", shared("0", "1", quota=1.5), shared("0", "1", quota=1.0)),
        (
            "oversubscribed: 3 ranks share 2 CPUs on host1, a machine of 2 nodes",
            job([0, 1, 1, 2], "0010", machines=(0, 1, 1, 2)),
            job([0, 1, 1, 2], "0010", machines=(0, 1, 1, 1)),
        ),
        (  # containers with cores of their own are no hazard
            "oversubscribed: 4 ranks share 3 CPUs on host0, a machine of 2 nodes",
            job([0, 0, 1, 1], "0123", machines=(0,) * 4, quota=1.5),
            job([0, 0, 1, 1], "0122", machines=(0,) * 4),
        ),
        ("ranks are not bound: 2 of them", shared("0-3", "4-7"), shared("0-3", "0-3")),
        ("MPI runs at thread level multiple", two(), two(thread_level="multiple")),
        ("governor powersave", two(), two(governor="powersave")),
        ("turbo is on", two(turbo=None), two(turbo="on")),
        ("clock rate cannot be read", two(), two(governor=None)),
        ("a virtual machine", two(virtual=None), two(virtual=True)),
        ("a world of one rank", two(), shared("0")),
    ],
)
def test_each_hazard_is_found_where_it_is_and_only_there(what, good, bad):
    assert any(what in text for text in found(bad))
    assert not any(what.split(":")[0] in text for text in found(good))


def test_settings_that_change_the_builtin_are_hazards(monkeypatch):
    monkeypatch.setenv("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM", "ring")
    monkeypatch.setenv("OMPI_MCA_mpi_yield_when_idle", "1")
    monkeypatch.setenv("MPICOLL_TRACE", "1")
    assert [text.partition(" ")[0] for text in found(two())] == ["MPICOLL_TRACE", "Open", "MPI's"]
    assert machine.environment()["MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"] == "ring"


def test_other_programs_are_judged_by_the_cpus_that_are_left():
    def hazards_of(busy, cpus):
        return found(replace(job([0, 0], "01", logical_cpus=cpus), busy=busy))

    assert hazards_of(1.24, 2) == ["other programs run: they keep 1.2 of 2 CPUs busy"]
    assert hazards_of(1.24, 8) == hazards_of(0.1, 2) == hazards_of(None, 2) == []
    assert hazards_of(6.5, 8)


def test_what_is_busy_is_seen_while_it_is():
    """A spinning process is a CPU; and one that sleeps is none (others may run here, so this is no more)."""
    with subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=-1) as other:
        other.stdout.readline()
        busy = machine.busy_cpus()
        other.kill()
    assert busy > 0.5


def test_without_the_native_engine_the_reason_is_given():
    assert found(job([0, 1], "01"), (False, "no compiler")) == ["no native engine: no compiler"]


def test_every_hazard_says_what_to_do():
    worst = job(
        [0, 0, 0], ["0-1"] * 3, thread_level="multiple", governor="powersave", turbo="on", virtual=True
    )
    for hazard in hazards.find_hazards(worst, (False, "reason")):
        assert hazard.effect
        assert hazard.fix
    text = as_text(worst, (False, "reason"), hazards.find_hazards(worst, (False, "reason")))
    assert text.count("    fix     ") == len(found(worst, (False, "reason")))
    assert "(grave)" in text
    assert describe(worst, NATIVE, [])["oversubscribed"] is True


def test_the_map_shows_who_is_where():
    cyclic = job([0, 1, 0, 1], ["0", "0-1", "2", "2-3"], numa=(0, None, 1, 1))
    text = as_text(cyclic, NATIVE, [])
    assert "job       4 ranks on 2 nodes, 2 each, cyclic placement" in text
    assert "node 0    host0                ranks (CPUs)  NUMA 0: 0 (0);  NUMA 1: 2 (2)" in text
    assert (
        "node 1    host1                ranks (CPUs)  over several NUMA domains: 1 (0-1);  NUMA 1: 3 (2-3)"
        in text
    )
    assert describe(cyclic, NATIVE, [])["topology"]["leaders"] == (0, 1)


def test_the_map_of_a_large_job_is_shortened():
    text = as_text(job([0] * 1000, ["0"] * 1000), NATIVE, [])
    assert "984 more" in text
    assert max(map(len, text.splitlines())) < 300
    lines = as_text(job(range(1000), ["0"] * 1000), NATIVE, []).splitlines()
    assert len(lines) < 90
    assert any("936 more nodes" in line for line in lines)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, (3, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", **SLURM}, (1, 2)),
        (SLURM, (0, 9)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "x"}, None),
    ],
)  # fmt: skip
def test_the_launcher_is_believed_in_order(monkeypatch, env, expected):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert world.launched() == expected


def test_a_world_too_small_is_a_problem(monkeypatch):
    assert world.launcher_problem(1) is None
    monkeypatch.setenv("SLURM_NTASKS", "4")  # a batch script without srun
    assert "started 4 ranks" in world.launcher_problem(1)
    assert "--mpi=pmi2" not in world.launcher_problem(1)
    assert world.launcher_problem(4) is None
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert "--mpi=pmi2" in world.launcher_problem(1)


def test_a_signal_is_noted_once_and_then_does_what_it_did_before():
    class Alone:
        """A world whose ranks are this one."""

        class control:  # noqa: N801  (stands for an attribute)
            @staticmethod
            def allreduce(value, op):
                return value

    with world.StopSignals() as stop:
        stop.check(Alone)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(world.Stopped, match="stopped by SIGINT") as stopped:
            stop.check(Alone)
        assert stopped.value.status == 130
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_warning_of_a_time_limit_stops_and_is_harmless_when_it_comes_again():
    before = signal.getsignal(signal.SIGUSR1)
    try:
        with world.StopSignals() as stop:
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)  # would kill us if nobody ignored it
            assert stop.received == signal.SIGUSR1
        signal.raise_signal(signal.SIGUSR1)  # a launcher may be late
        assert world.Stopped(stop.received).status == 138
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_machine_facts_are_json_and_true():
    facts = machine.describe_machine()
    assert facts["logical_cpus"] >= facts["physical_cores"] >= 1
    assert len(machine.affinity()) <= facts["logical_cpus"]
    assert parse_cpus(machine.compact({5, 1, 2, 3})) == {1, 2, 3, 5}
    assert machine.read_text("/none/such") is None


def test_git_state_is_only_that_of_mpicoll(tmp_path):
    author = ["-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "m"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, timeout=30)
    assert machine.git_state(tmp_path) is None
    assert machine.git_state(tmp_path / "none") is None


def test_orders_are_permutations_and_reproducible():
    made = orders(5, 50, seed=3)
    assert all(sorted(order) == list(range(5)) for order in made)
    assert len(set(map(tuple, made))) > 20
    random.seed(99)
    assert orders(5, 50, seed=3) == made
    assert orders(5, 50, seed=4) != made


@pytest.mark.parametrize("prime", [False, True])
def test_every_timed_call_follows_a_barrier(prime):
    """And a primed one, its own untimed call before that."""
    log = []
    calls = [lambda: log.append("a"), lambda: log.append("b")]
    times = measure([calls], lambda: log.append("|"), [[0, 1], [1, 0]], prime=prime)
    assert "".join(log) == ("a|ab|bb|ba|a" if prime else "|a|b|b|a")
    assert times.seconds.shape == (2, 2)
    assert (times.seconds > 0).all()
    # A call begins after the one before it has ended.
    begins = [times.begins[where] for where in ((0, 0), (0, 1), (1, 1), (1, 0))]
    assert begins[1] >= begins[0] + times.seconds[0, 0]
    assert sorted(begins) == begins


def test_cold_calls_take_the_sets_of_buffers_in_turn():
    """The caches are emptied first; a primed contender runs on the set used last, never on its own."""
    log = []
    sets = [[lambda name=f"{who}{number}": log.append(name) for who in "ab"] for number in range(3)]
    options = {"evict": lambda: log.append("-"), "prime": True, "first_set": 2}
    measure(sets, lambda: log.append("|"), [[0, 1], [1, 0]], **options)
    assert " ".join(log) == "- a1 | a2 - b2 | b0 - b0 | b1 - a1 | a2"


@pytest.mark.parametrize("set_bytes", [0, 8, 1 << 20, 3 << 20, 16 << 20, 1 << 30])
def test_enough_passes_through_the_cache_between_two_uses_of_a_set(set_bytes):
    known = cold.Cold(8 << 20, True)
    sets = known.sets(set_bytes)
    assert 2 <= sets <= 8
    assert (sets - 1) * set_bytes + known.lacking(sets, set_bytes) >= 2 * known.cache_bytes
    # Where sets are large, turns do it all.
    assert not known.lacking(sets, set_bytes) or 8 * set_bytes < 2 * known.cache_bytes + set_bytes


def test_the_last_level_is_found_or_assumed(tmp_path):
    for index, (level, size) in enumerate([("1", "32K"), ("1", "32K"), ("3", "36M"), ("2", "1M")]):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}/level").write_text(level)
        (tmp_path / f"index{index}/size").write_text(size)
    assert cold._here(tmp_path) == cold.Cold(36 << 20, True)
    assert not cold._here(tmp_path / "none").known


def test_memory_is_swept_only_where_it_must_be():
    assert cold.sweeper(0) is None
    sweep = cold.sweeper(100)
    sweep()
    (memory,) = [cell.cell_contents for cell in sweep.__closure__]
    assert memory.nbytes >= 100
    assert (memory == 2).all()


def test_a_window_on_shared_cpus_is_a_hazard():
    crowded = shared("0", "0")
    assert not any("one moment" in hazard.what for hazard in hazards.find_hazards(crowded, NATIVE))
    assert any("one moment" in hazard.what for hazard in hazards.find_hazards(crowded, NATIVE, "window"))
    assert not any("one moment" in hazard.what for hazard in hazards.find_hazards(two(), NATIVE, "window"))


def test_the_garbage_collector_rests_and_comes_back():
    def fail():
        with no_garbage_collection():
            assert not gc.isenabled()
            raise KeyError

    assert gc.isenabled()
    with pytest.raises(KeyError):
        fail()
    assert gc.isenabled()


def test_the_timer_is_measured():
    facts = timer_facts(2000)
    assert 0 < facts["timer_resolution"] <= facts["timer_call"] < 1e-3
    seconds, number = cost_of(lambda: None, budget=0.01, most=50)
    assert 0 < seconds < 1e-2
    assert 1 <= number <= 50


def test_equal_values_with_other_bytes_are_told_apart():
    same = [digest(np.array([0.0, 1.0])), digest(np.array([0.0, 1.0]))]
    assert different_bytes(same) is None
    negative_zero = np.array([-0.0, 1.0])
    assert np.array_equal(negative_zero, [0.0, 1.0])
    assert "rank 2 holds other bytes" in different_bytes([*same, digest(negative_zero)])


def test_a_case_in_a_line():
    case = Case("allreduce", "float32", "sum", 0, 256, 2)

    def rows(name, seconds, **more):
        who = {"implementation": "mpi", "requested": name, "engine": None}
        if name != "builtin":
            who |= {"implementation": "mpicoll", "engine": "native"}
        return {**who, "status": "ok", "warmup": False, "seconds": seconds, **more}

    text = summary_line(case, [rows("ring", 1e-6), rows("tree", 3e-6), rows("builtin", 2e-6)])
    assert text == "all-reduce float32 sum 1 KiB; ring (native) 1 µs, 0.50 of builtin; builtin 2 µs"
    assert "builtin" not in summary_line(case, [rows("ring", 1e-6)])
    assert "WRONG ring (native): why" in summary_line(
        case, [rows("ring", None, status="wrong", reason="why")]
    )


def test_the_command_line_has_help_and_a_version(capsys):
    for argv in (["--help"], ["sweep", "--help"], ["report", "--help"], ["info", "--help"], ["--version"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(argv)
        assert stopped.value.code == 0
    assert "--thread-level" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        cli.main(["frobnicate"])
    assert stopped.value.code == 2


def test_help_imports_no_verb():
    """It is to be there at once."""
    code = (
        "import sys; from mpicoll.__main__ import run\n"
        "try: run()\nexcept SystemExit: print(sorted({'numpy', 'importlib.metadata'} & {*sys.modules}),"
        "[name for name in sys.modules if name.startswith('mpicoll.bench.')])"
    )
    argv = [sys.executable, "-c", code, "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert all(re.search(rf"^    {verb}\s", done.stdout, re.M) for verb in cli.VERBS)
    assert set(re.findall(r"bench\.(\w+)", done.stdout.splitlines()[-1])) == {"cli", "machine", "world"}
    assert done.stdout.splitlines()[-1].startswith("[] ")


@pytest.mark.parametrize("module", ["mpicoll.bench.cli", "mpicoll.bench.world", "numpy", "mpi4py.MPI"])
def test_ctrl_c_while_modules_are_imported_is_a_line(module):
    code = """
import runpy, sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == module:
            sys.meta_path.remove(self)
            raise KeyboardInterrupt
module = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupt())
runpy.run_module("mpicoll", run_name="__main__", alter_sys=True)
"""
    argv = [sys.executable, "-c", code, module, "info"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "mpicoll: stopped by SIGINT\n")


@pytest.mark.parametrize("argv", [["frobnicate"], ["sweep", "--sizes", "x"]])
def test_other_ranks_keep_silent(argv):
    for rank in ("0", "1"):
        env = {**os.environ, "PMI_RANK": rank, "PMI_SIZE": "2"}
        result = subprocess.run(
            [sys.executable, "-m", "mpicoll", *argv],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert result.returncode == 2
        assert bool(result.stdout + result.stderr) == (rank == "0")


def test_resume_needs_a_directory():
    args = cli.make_parser().parse_args(["sweep", "--resume"])
    with pytest.raises(ArgumentError, match="--resume needs -o DIR"):
        args.func(args)


def test_a_missing_package_of_the_report_is_named():
    hidden = "import sys; sys.modules['altair'] = None; from mpicoll.bench.cli import main; "
    argv = [sys.executable, "-c", hidden + "sys.exit(main(['report', '.']))"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert "a report needs more packages (altair): pip install 'mpicoll[report]'" in result.stderr
