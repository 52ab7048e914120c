"""The verbs that need no MPI, as a user types them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mpicoll.bench import cli, sweep, tools
from mpicoll.errors import ArgumentError
from mpicoll.registry import algorithm, algorithms, unregister
from mpicoll.schedule import Schedule, Side, Window, recv, send

Run = Callable[..., int]


@pytest.fixture
def run() -> Run:
    """Run a verb; returns its exit status."""
    parser = cli.make_parser()

    def call(*words: str) -> int:
        args = parser.parse_args(words)
        return args.func(args)

    return call


@pytest.fixture
def wrong() -> Iterator[str]:
    """An algorithm that forgets the last rank, registered for one test."""

    @algorithm("reduce", blocks=lambda size, p: 1, name="wrong for tests")
    def wrong(rank: int, size: int, *, root: int = 0) -> Schedule:
        """Reduce all but one."""
        others = [peer for peer in range(size) if peer != root][:-1]
        if rank == root:
            for peer in others:
                yield recv(peer, Window(0), side=Side.RIGHT)
        elif rank in others:
            yield send(root, Window(0))

    yield "wrong for tests"
    unregister("reduce", "wrong for tests")


def test_show_draws_and_counts(run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    file = tmp_path / "ring.svg"
    assert run("show", "allreduce", "ring", "--ranks", "3", "--svg", str(file), "--ascii") == 0
    out = capsys.readouterr().out
    assert "rank 2  1 1 1    2 1 1    2 1 #    2 # #    # # #" in out
    assert "4 rounds, 12 messages; a rank sends at most 4/3 n and reduces at most 2/3 n." in out
    assert out.isascii()
    assert ElementTree.parse(file).getroot().tag.endswith("svg")


def test_show_takes_parameters_roots_and_nodes(run: Run, capsys: pytest.CaptureFixture[str]):
    assert run("show", "bcast", "chain", "--ranks", "3", "--root", "2", "--param", "segments=2") == 0
    assert "P=3, root=2, segments=2" in capsys.readouterr().out.replace(
        "segments=2, root=2", "root=2, segments=2"
    )
    assert run("show", "allreduce", "leader", "--ranks", "3", "--nodes", "2,1") == 0
    assert "nodes=(0, 0, 1)" in capsys.readouterr().out


def test_show_refuses_what_cannot_be_served(run: Run, capsys: pytest.CaptureFixture[str]):
    assert run("show", "allreduce", "leader") == 1
    assert "needs a node map" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("list", "allredcue"), "unknown collective 'allredcue'"),
        (("list", "--ranks", "0"), "begin at 1"),
        (("list", "--ranks", "8", "--nodes", "1,2,3"), "write ranks per node that add up to 8"),
        (("list", "--ranks", "8", "--nodes", "a,b"), "write ranks per node"),
        (("list", "--nodes", "4,4"), "--nodes is for one number of ranks, --ranks 8,12 are several"),
        (
            ("list", "--ranks", "4", "--nodes=-1,5"),
            "--nodes -1,5: ranks per node and numbers of nodes are not",
        ),
        (("show", "allreduce", "leader", "--nodes=-1,5"), "are not negative"),
        (("show", "allreduce", "leader", "--nodes=0,-1,1,0"), "are not negative"),
        (("show", "allreduce", "leader", "--param", "nodes=3"), "a node map is given by --nodes 2,2"),
        (("show", "allreduce", "ring", "--ranks", "100000000"), "a picture of more than 1024 ranks"),
        (("show", "bcast", "chain", "--param", "segments=0"), "segments must be a whole number"),
        (("show", "allreduce", "leader", "--nodes", "2,2", "--param", "leaders=x"), "leaders"),
        (("verify", "--ranks", "1:100000000000"), "are more than the 1048576 that can be asked for"),
        (("show", "allreduce", "rign"), "has no algorithm 'rign'"),
        (("show", "allreduce", "ring", "--param", "k"), "write NAME=VALUE"),
        (("show", "allreduce", "ring", "--param", "k=3"), "has no parameter k"),
        (("show", "bcast", "chain", "--root", "9"), "root 9 is not in 0..3"),
        (("verify", "allreduce", "rign"), "has no algorithm 'rign'"),
        (("verify", "--ranks", "x"), "not numbers of ranks: 'x'"),
        (("verify", "--ranks", "0:3"), "begin at 1"),
        (("verify", "--jobs", "0"), "--jobs 0: needs a whole number"),
    ],
)
def test_wrong_usage_is_status_2(run: Run, capsys: pytest.CaptureFixture[str], words: tuple, message: str):
    assert run(*words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_verify_proves_and_says_how_it_grows(run: Run, capsys: pytest.CaptureFixture[str]):
    assert run("verify", "allreduce", "ring", "--ranks", "1:16") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("proved  allreduce/ring")
    assert "16 cases" in lines[0]
    assert "mutants refused" in lines[0]
    assert "P=16 takes" in lines[0]
    assert lines[-1].startswith("1 of 1 algorithms proved for P=1..16: 16 cases, ")


def test_verify_names_sizes_not_served(run: Run, capsys: pytest.CaptureFixture[str]):
    assert run("verify", "allgather", "neighbor_exchange", "--ranks", "2:5") == 0
    assert "allgather/neighbor_exchange serves 2 of these 4 sizes, and not P=3, 5" in capsys.readouterr().out


def test_verify_fails_on_a_wrong_algorithm_and_goes_on(
    run: Run, wrong: str, capsys: pytest.CaptureFixture[str]
):
    assert run("verify", "reduce", "--ranks", "2,3", "--jobs", "1") == 1
    out = capsys.readouterr().out
    assert (
        "FAILED  reduce/wrong for tests P=2 root=0: at the end block 0 of rank 0 lacks the contribution"
        in out
    )
    assert "proved  reduce/binomial" in out
    # Its compositions are as wrong as it is: leader and two_level take it for an inner algorithm, too.
    assert "FAILED  reduce/leader" in out
    assert "FAILED  reduce/two_level" in out
    assert out.splitlines()[-1].startswith(f"{len(algorithms('reduce')) - 3} of {len(algorithms('reduce'))}")


def test_verify_in_several_processes_loads_the_file_in_each(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "silent.py"
    file.write_text(
        "from mpicoll.registry import algorithm\n"
        "@algorithm('barrier', blocks=lambda size, p: 1, name='silent for tests')\n"
        "def silent(rank, size):\n"
        "    'No messages at all.'\n"
        "    return iter(())\n"
    )
    try:
        assert run("verify", "barrier", "--ranks", "1:4", "--jobs", "2", "--load", str(file)) == 1
    finally:
        unregister("barrier", "silent for tests")
    out = capsys.readouterr().out
    assert "FAILED  barrier/silent for tests P=2" in out
    assert "proved  barrier/dissemination" in out


def test_verify_notes_undeclared_order(run: Run, capsys: pytest.CaptureFixture[str]):
    @algorithm("reduce", blocks=lambda size, p: 1, name="in order for tests")
    def in_order(rank: int, size: int, *, root: int = 0) -> Schedule:
        """Hand a growing sum down to rank 0, and the result to the root."""
        if rank < size - 1:
            yield recv(rank + 1, Window(0), side=Side.RIGHT)
        if rank > 0:
            yield send(rank - 1, Window(0))
        if root > 0 and rank == 0:
            yield send(root, Window(0))
        if root > 0 and rank == root:
            yield recv(0, Window(0))

    try:
        assert run("verify", "reduce", "in order for tests", "--ranks", "1:5") == 0
        assert "combined in rank order in every case, but is not declared ordered" in capsys.readouterr().out
    finally:
        unregister("reduce", "in order for tests")


def test_an_interrupted_proof_ends_quietly():
    """Ctrl-C in a terminal goes to all processes, of which only the first has something to say."""
    with subprocess.Popen(
        [sys.executable, "-m", "mpicoll", "verify", "--ranks", "1:64", "--jobs", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline().startswith("proved")
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "mpicoll: stopped by SIGINT\n")


def test_flags_are_not_abbreviated(capsys: pytest.CaptureFixture[str]):
    """Batch scripts look for `--output` among the arguments of a sweep."""
    with pytest.raises(SystemExit, match="2"):
        cli.main(["sweep", "--outp", "somewhere", "--sizes", "x"])
    assert "unrecognized arguments: --outp" in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="unrecognized arguments: --outp"):
        sweep.check_arguments(["--outp", "somewhere"])


def test_parsers_refuse_what_they_cannot_read():
    assert tools.parse_ranks("8,1:3,2") == [1, 2, 3, 8]
    assert tools.parse_nodes("2,2", 4) == (0, 0, 1, 1)
    assert tools.parse_nodes("0,1,1,0", 4) == (0, 1, 1, 0)
    with pytest.raises(ArgumentError):
        tools.parse_nodes("2,2", 5)
    assert tools.parse_params(["a=(0, 1)", "b=ring"]) == {"a": (0, 1), "b": "ring"}


@pytest.mark.parametrize(
    ("text", "message"),
    [("1 / 0", "ZeroDivisionError"), ("def", "SyntaxError"), ("import no_such", "no_such")],
)
def test_a_file_that_fails_is_named_in_a_line(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    assert run("show", "allreduce", "ring", "--load", str(path)) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"mpicoll: {path}: ")
    assert message in said
    assert said.count("\n") == 1
