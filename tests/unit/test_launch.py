"""Campaigns, command lines and batch scripts: pure functions, and what they say to the letter."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mpicoll.bench import batch
from mpicoll.bench.campaign import Campaign, Launch, read_campaign
from mpicoll.bench.launch import check_sweeps, refuse_inside_a_job
from mpicoll.bench.launchers import command, settings_of
from mpicoll.bench.sites import SHIPPED, Site, make_site, read_site, shipped
from mpicoll.errors import ArgumentError

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ["mpicoll", "sweep", "-o", "DIR/launches/0007", "--resume"]
BLOCK = Launch(7, 1, 4, 2, 2, "block", "default", "default")
CYCLIC = replace(BLOCK, placement="cyclic")
HERE = replace(BLOCK, nodes=1, ppn=4)
SETTINGS = (("UCX_TLS", "tcp,self"), ("WORDS", "two words"))


@pytest.fixture
def campaign(tmp_path):
    def write(text):
        path = tmp_path / "c.toml"
        path.write_text(text)
        return read_campaign(path)

    return write


# -- the plan ----------------------------------------------------------------------------------------------


def test_every_combination_is_launched_once_in_each_repeat(campaign):
    plan, left_out = campaign(
        'nodes = [2, 4]\nppn = [1, 2]\nplacement = ["block", "cyclic"]\nrepeats = 3\n'
        '[environment.plain]\n[environment.tuned]\nX = "1"\n[options.a]\nsizes = "4"\n'
    ).plan()
    assert not left_out
    assert [launch.number for launch in plan] == list(range(2 * 2 * 2 * 2 * 3))
    kinds = Counter(replace(launch, number=0, repeat=0) for launch in plan)
    assert len(kinds) == 16
    assert set(kinds.values()) == {3}
    # A block of the design: all configurations of a repeat before the next repeat begins, each in its order.
    assert [launch.repeat for launch in plan] == sorted(launch.repeat for launch in plan)
    orders = [[replace(x, number=0, repeat=0) for x in plan if x.repeat == k] for k in range(3)]
    assert orders[0] != orders[1] != orders[2]


def test_the_plan_is_the_same_for_the_same_seed_only(campaign):
    text = "ranks = [2, 3, 4, 5]\nrepeats = 2\nseed = {}\n"
    first, again, other = (campaign(text.format(seed)).plan()[0] for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("ranks", "nodes", "placement", "counts"),
    [
        (5, 2, "block", [3, 2]),
        (5, 2, "cyclic", [3, 2]),
        (5, 3, "block", [2, 2, 1]),
        (4, 3, "cyclic", [2, 1, 1]),
        (4, 3, "block", None),  # two on each of the first two, and nothing left for the third
        (2, 3, "cyclic", None),
    ],
)
def test_a_shape_that_leaves_a_node_empty_is_left_out_and_said(campaign, ranks, nodes, placement, counts):
    text = f'ranks = {ranks}\nnodes = {nodes}\nplacement = "{placement}"\nrepeats = 1\n'
    if counts is None:
        with pytest.raises(ArgumentError, match=f"{ranks} ranks on {nodes} nodes.* empty"):
            campaign(text).plan()
        return
    (launch,), _ = campaign(text).plan()
    at = Counter(launch.node_of(rank) for rank in range(ranks))
    assert [at[node] for node in range(nodes)] == counts


def test_one_node_knows_one_placement(campaign):
    plan, left_out = campaign('ranks = 2\nplacement = ["cyclic", "block"]\nrepeats = 1\n').plan()
    assert [launch.placement for launch in plan] == ["cyclic"]
    assert left_out == ["2 ranks on 1 node, block: the same as cyclic"]


def test_a_launch_gets_the_flags_of_its_options_and_a_seed_of_its_repeat(campaign, tmp_path):
    made = campaign(
        'spec = "s.toml"\nranks = 4\nseed = 10\n[sweep]\nsizes = "4:1M:4"\ncheck = false\ncase-time = "1s"\n'
        '[options.own]\nalgorithms = ["ring", "builtin"]\nsizes = [8, "1K"]\n'
    )
    argv = made.sweep_arguments(Launch(7, 2, 4, 1, 4, "block", "default", "own"), Path("DIR"))
    assert shlex.join(argv) == (
        f"sweep {tmp_path}/s.toml --sizes 8,1K --no-check --case-time 1s --algorithms ring,builtin"
        " --seed 12 -o DIR/launches/0007 --resume"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rank = 2", "unknown setting rank .*known: ranks"),
        ("ranks = 0", "needs a whole number from 1 on"),
        ("ranks = true", "needs a whole number from 1 on"),
        ("ranks = []", "is empty"),
        ("nodes = 2", "either ranks .* or ppn"),
        ("ranks = 2\nppn = 2", "either ranks .* or ppn"),
        ('ranks = 2\nplacement = "random"', "needs some of block, cyclic"),
        ("ranks = 2\nrepeats = 0", "needs a whole number from 1 on"),
        ('ranks = 2\ntimeout = "soon"', "not a duration"),
        ("ranks = 2\n[sweep]\nseed = 4", "itself decides seed"),
        ("ranks = 2\n[options.a]\nresume = true", "itself decides resume"),
        ("ranks = 2\n[environment]\nX = 1", "environment = "),
        ("ranks = [2", "is not TOML"),
        ('ranks = 2\ntimeout = "0s"', "timeout = '0s': .*more than 0 seconds"),
        ('ranks = 2\n[environment.a]\n"A=B" = "1"', "'A=B' is no name of a variable"),
        ('ranks = 2\n[environment.a]\nA = "\\u0000"', "a NUL in it"),
    ],
)
def test_a_bad_campaign_is_refused(campaign, text, words):
    with pytest.raises(ArgumentError, match=words):
        campaign(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ranks = 99999999", "99999999 ranks: more than 1048576"),
        ("nodes = 1000000\nppn = 1000000", "1000000000000 ranks"),
        ("ranks = 2\nrepeats = 100000", "100000 repeats: more than 500"),
        (f"ranks = {list(range(2, 99))}\nrepeats = 500", "48500 launches: more than 10000"),
    ],
)
def test_a_slip_of_the_finger_plans_no_million_launches(campaign, text, words):
    with pytest.raises(ArgumentError, match=words):
        campaign(text).plan()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[sweep]\nbytes = "4"', "c.toml, options default: .*--bytes"),
        ('[options.a]\nsizes = "4:1"', "options a: .*min <= max"),
        ('[options.a]\niterations = "many"', "options a: .*invalid int value"),
        ("[sweep]\niterations = 0", "options default: iterations = 0"),
    ],
)
def test_what_a_sweep_would_refuse_is_refused_before_any_launch(campaign, tmp_path, text, words):
    made = campaign(f"ranks = 2\n{text}\n")
    with pytest.raises(ArgumentError, match=words):
        check_sweeps(made, tmp_path / "c.toml")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ('algorithms = "rnig"', "unknown algorithm 'rnig'"),
        ('algorithms = "segmented_ring:segments=0"', "segments must be a whole number of at least 1"),
        ('dtype = "float33"', "unknown dtype 'float33'"),
        ('collective = "allredcue"', "allredcue"),
    ],
)
def test_what_no_launch_could_measure_is_refused_first(campaign, tmp_path, setting, message):
    with pytest.raises(ArgumentError, match=message):
        check_sweeps(campaign(f"ranks = 2\n[sweep]\n{setting}\n"), tmp_path / "c.toml")


# -- command lines -----------------------------------------------------------------------------------------

MPICH = Site(flavour="mpich", hosts=("a", "b", "c"), cores=8)
OPENMPI = replace(MPICH, flavour="openmpi")
SRUN = Site(launcher="srun", mpi="pmi2", cores=8)


@pytest.mark.parametrize(
    ("site", "launch", "settings", "expected"),
    [
        (replace(MPICH, hosts=()), HERE, (), "mpirun -n 4 -bind-to core"),
        (MPICH, BLOCK, (), "mpirun -n 4 -hosts a:2,b:2 -bind-to core"),
        (MPICH, CYCLIC, (), "mpirun -n 4 -hosts a:1,b:1 -bind-to core"),
        (
            replace(MPICH, mpirun="/opt/mpich/bin/mpirun", flags=("-launcher", "ssh"), binding="none"),
            BLOCK,
            SETTINGS,
            "/opt/mpich/bin/mpirun -n 4 -hosts a:2,b:2 -bind-to none -genv UCX_TLS tcp,self"
            " -genv WORDS 'two words' -launcher ssh",
        ),
        (replace(OPENMPI, hosts=()), HERE, (), "mpirun -n 4 --map-by slot --bind-to core"),
        (OPENMPI, BLOCK, (), "mpirun -n 4 --host a:2,b:2 --map-by slot --bind-to core"),
        (
            OPENMPI,
            CYCLIC,
            SETTINGS,
            "mpirun -n 4 --host a:2,b:2 --map-by node --bind-to core -x UCX_TLS=tcp,self"
            " -x 'WORDS=two words'",
        ),
        (
            replace(OPENMPI, cores=1, oversubscribe=True),
            BLOCK,
            (),
            "mpirun -n 4 --host a:2,b:2 --map-by slot:oversubscribe --bind-to none",
        ),
        (
            SRUN,
            BLOCK,
            (),
            "srun --mpi=pmi2 --nodes=2 --ntasks=4 --ntasks-per-node=2 --distribution=block --cpu-bind=cores"
            " --kill-on-bad-exit=1",
        ),
        (
            replace(SRUN, mpi="pmix", cores=1, oversubscribe=True, flags=("--exclusive",)),
            CYCLIC,
            SETTINGS,
            "env UCX_TLS=tcp,self 'WORDS=two words' srun --mpi=pmix --nodes=2 --ntasks=4 --ntasks-per-node=2"
            " --distribution=cyclic --cpu-bind=none --kill-on-bad-exit=1 --overcommit --exclusive",
        ),
    ],
)
def test_a_launch_is_this_command(site, launch, settings, expected):
    assert shlex.join(command(launch, site, settings, PROGRAM)) == f"{expected} {shlex.join(PROGRAM)}"


@pytest.mark.parametrize(
    ("site", "launch", "words"),
    [
        (replace(MPICH, cores=1), BLOCK, "node of 1 cores.*oversubscribe = true` in the file of the --site"),
        (replace(SRUN, cores=1), BLOCK, "2 ranks on a node of 1 cores"),
        (replace(MPICH, hosts=("a",)), BLOCK, "2 nodes are wanted, but only these known: a"),
        (replace(MPICH, hosts=()), BLOCK, "name them .--hosts a,b.* or use --slurm"),
    ],
)
def test_what_a_site_cannot_do_is_refused(site, launch, words):
    with pytest.raises(ArgumentError, match=words):
        command(launch, site, (), PROGRAM)


def test_a_campaigns_variables_win_over_the_sites():
    site = replace(MPICH, environment=(("A", "site"), ("B", "site")))
    campaign = Campaign(environment={"default": (("B", "campaign"), ("C", "campaign"))})
    assert dict(settings_of(campaign, site, BLOCK)) == {"A": "site", "B": "campaign", "C": "campaign"}


@pytest.mark.parametrize("name", ["PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_STEP_NUM_TASKS"])
def test_a_rank_cannot_launch(monkeypatch, name):
    monkeypatch.setenv(name, "4")
    with pytest.raises(ArgumentError, match=f"{name} is set"):
        refuse_inside_a_job()


# -- sites and scripts -------------------------------------------------------------------------------------


def test_sites_come_with_the_package():
    assert shipped() == ["generic-cpu", "generic-gpu"]
    assert SHIPPED.resolve() == ROOT / "slurm" / "sites"
    for name in shipped():
        assert read_site(name) == read_site(str(SHIPPED / f"{name}.toml"))
        assert read_site(name).launcher == "srun"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"launchr": "srun"}, "unknown setting launchr in here; known: .*launcher"),
        ({"launcher": "aprun"}, "needs one of mpirun, srun"),
        ({"flags": "-x"}, "needs a list of texts"),
        ({"cores": 0}, "needs a whole number"),
        ({"oversubscribe": "yes"}, "needs true or false"),
        ({"sbatch": {"time": ["1"]}}, "needs texts, numbers, true or false"),
        ({"mpi": ""}, "needs a text"),
        ({"title": "a\nrm -r b"}, "needs a text of one line"),
        ({"sbatch": {"time": "1\n2"}}, "needs texts of one line"),
        ({"program": ["mpi\0coll"]}, "a NUL in it"),
        ({"environment": {"": 1}}, "no name of a variable"),
    ],
)
def test_a_bad_site_is_refused(table, words):
    with pytest.raises(ArgumentError, match=words):
        make_site(table, "here")


def test_an_unknown_site_names_the_known_ones():
    with pytest.raises(ArgumentError, match="unknown site 'mine'; known: generic-cpu, generic-gpu"):
        read_site("mine")


@pytest.mark.parametrize("kind", batch.KINDS)
def test_scripts_in_the_repository_are_what_the_code_says(kind):
    name = "generic-gpu" if kind == "gpu" else "generic-cpu"
    text = (ROOT / "slurm" / f"{kind}.sbatch").read_text()
    expected = batch.script(kind, read_site(name), name)
    assert text == expected, f"mpicoll launch --script {kind} --site {name} > slurm/{kind}.sbatch"


def test_a_site_decides_what_a_script_says():
    site = make_site(
        {
            "launcher": "mpirun", "flavour": "openmpi", "modules": ["gcc/13", "openmpi/5"], "warn": 60,
            "setup": ["source venv/bin/activate"], "environment": {"UCX_TLS": "rc,self"},
            "sbatch": {"partition": "debug", "exclusive": True, "requeue": False, "time": "01:00:00"},
        },
        "here",
    )  # fmt: skip
    lines = batch.script("sweep", site, "my site.toml").splitlines()
    for line in (
        "#SBATCH --partition=debug", "#SBATCH --exclusive", "#SBATCH --time=01:00:00",
        "#SBATCH --signal=B:USR1@60", "module load gcc/13 openmpi/5", "source venv/bin/activate",
        "export UCX_TLS=rc,self", "launcher=(mpirun --bind-to core -x UCX_TLS)",
    ):  # fmt: skip
        assert lines.count(line) == 1, line
    assert "#SBATCH --time=00:30:00" not in lines
    assert "#SBATCH --requeue" not in lines
    campaign = batch.script("campaign", site, "my site.toml")
    assert "--site 'my site.toml')" in campaign
    assert "launcher=" not in campaign


@pytest.fixture
def job(tmp_path):
    """Run the sweep's script here, with a launcher that does what it is told, and see how it ends."""

    def run(launcher, *arguments):
        (tmp_path / "job.sh").write_text(batch.script("sweep", Site(), "here"))
        (tmp_path / "scontrol").write_text('#!/bin/sh\necho "scontrol $*"\n')
        (tmp_path / "launcher").write_text(f"#!/bin/bash\n{launcher}\n")
        for name in ("scontrol", "launcher"):
            (tmp_path / name).chmod(0o755)
        env = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "17",
            "MPICOLL_LAUNCHER": "launcher",
        }
        argv = ["bash", tmp_path / "job.sh", *arguments]
        return subprocess.run(argv, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=60)

    return run


DONE = """while [[ $1 != -o ]]; do shift; done; mkdir -p "$2"; echo '"status": "complete"' > "$2/run.json" """


@pytest.mark.parametrize(
    ("arguments", "directory"),
    [
        ([], "results/sweep-17"),
        (["--sizes", "4", "-o", "a b"], "a b"),
        (["--output=c", "--sizes", "4"], "c"),
        (["-od"], "d"),
    ],
)
def test_a_job_knows_where_its_result_lies(job, tmp_path, arguments, directory):
    done = job(f'echo "$@"; while (($# > 3)); do shift; done; set -- "$@"; {DONE}', *arguments)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / directory / "run.json").exists()
    assert done.stdout.startswith(f"mpicoll sweep {' '.join(arguments)}".rstrip())


def test_a_launcher_that_lies_does_not_make_a_good_job(job):
    done = job("exit 0")
    assert done.returncode == 1
    assert "tells of no complete sweep" in done.stderr
    assert job("exit 3").returncode == 3


def test_a_job_that_is_told_hands_it_on_and_goes_back_into_the_queue(job):
    waiting = "for i in {1..100}; do sleep 0.05; done"
    told = job(f"trap 'echo heard; exit 138' USR1; sleep 0.3; kill -USR1 $PPID; {waiting}")
    assert told.returncode == 138
    assert "heard" in told.stdout
    assert "scontrol requeue 17" in told.stdout
    finished = job(f"trap 'exec true' USR1; {DONE}; sleep 0.3; kill -USR1 $PPID; sleep 0.3")
    assert finished.returncode == 0
    assert "requeue" not in finished.stdout


@pytest.mark.parametrize("kind", batch.KINDS)
def test_scripts_are_valid_shell(kind):
    text = batch.script(kind, read_site("generic-gpu"), "generic-gpu")
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, timeout=20)
    assert done.returncode == 0, done.stderr
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", "-"], input=text, text=True, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stdout


def test_repeats_are_the_array_of_a_job():
    words = batch.submission(4, 2, range(5), {"time": "01:00:00", "nodes": "6", "exclusive": ""}, "log")
    assert shlex.join(words) == (
        "sbatch --nodes=6 --ntasks-per-node=2 --array=0-4%1 --output=log --time=01:00:00 --exclusive"
    )
    assert "--array=3" in batch.submission(4, 2, [3], {}, "log")
