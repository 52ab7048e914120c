"""What sections of a report find: violated guidelines, reasons for distrust, differences with topology."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from mpicoll.bench import cli, frame, guidelines, links, loading, overview, stats, trust
from mpicoll.bench.sections import Loaded, Section, Table
from mpicoll.cost import uniform
from mpicoll.errors import ArgumentError
from mpicoll.registry import unregister
from synthetic import HAZARD, identity, launch, write_result


def loaded(*directories: Path) -> Loaded:
    results = frame.load(directories)
    return Loaded(results, stats.summarise(results.samples), directories)


def measure(directory: Path, collective: str, seconds: dict[int, float], **columns) -> Path:
    """Six launches of the builtin and of an own algorithm that takes four fifths of its time."""
    own = {size: 0.8 * time for size, time in seconds.items()}
    options = {"launches": 6, "iterations": 12, "spread": 0.03, **columns}
    return write_result(directory, {"builtin": seconds, "ring": own}, collective=collective, **options)


@pytest.fixture(scope="module")
def tuned_badly(tmp_path_factory):
    """An all-reduce of 64 KiB that takes longer than reduce and broadcast, and than one of twice the size."""
    folder = tmp_path_factory.mktemp("guidelines")
    measure(folder / "allreduce", "allreduce", {1024: 4e-6, 65536: 90e-6, 131072: 70e-6})
    measure(folder / "reduce", "reduce", {1024: 3e-6, 65536: 30e-6}, seed=2)
    measure(folder / "bcast", "bcast", {1024: 2e-6, 65536: 20e-6}, seed=3, op=None)
    return folder


def test_a_violated_guideline_is_found_for_mpi_and_for_own_and_kept_ones_are_not(
    tmp_path_factory, tuned_badly
):
    """One run directory has all three collectives, as a sweep would: launches are paired."""
    together = merged(tuned_badly, tmp_path_factory.mktemp("merged"))
    data = loaded(together)
    section = guidelines.section(data)
    found = section.tables[0]
    assert found.caption == "Violated, or leaning to it"
    violated = {(row[0], row[1], row[2]) for row in found.rows if row[6] == "VIOLATED"}
    expected = {("all-reduce ≤ reduce + broadcast", "64 KiB"), ("all-reduce is monotone", "64 KiB ≤ 128 KiB")}
    assert violated == {(who, *rule) for who in ("builtin", "own") for rule in expected}
    assert "2 VIOLATED" in section.words[1]
    everything = section.tables[1]
    kept = {row[1] for row in everything.rows if row[6] == "kept" and row[0] == "builtin"}
    assert {"all-reduce ≤ reduce + broadcast", "reduce ≤ all-reduce", "broadcast ≤ all-reduce"} <= kept


def merged(folder: Path, target: Path) -> Path:
    """The samples of several synthetic runs as those of one."""
    lines = []
    for number, run in enumerate(sorted(folder.iterdir())):
        head, *rows = (run / "samples.csv").read_text().splitlines()
        at = head.split(",").index("case")
        for row in rows:
            fields = row.split(",")
            fields[at] = str(1000 * number + int(fields[at]))
            lines.append(",".join(fields))
    (target / "samples.csv").write_text("\n".join([head, *lines]) + "\n")
    (target / "run.json").write_text((run / "run.json").read_text())
    return target


def test_every_operation_and_root_is_checked_and_nothing_twice():
    """An all-gather has neither; a broadcast has a root, an all-reduce an operation."""
    times = {("source", 0): np.array([1e-6])}
    cells = {("allgather", "", 0, size): {**times} for size in (8, 16)}
    cells |= {("allreduce", op, 0, 8): {**times} for op in ("max", "sum")}
    cells |= {("bcast", "", root, 8): {**times} for root in (0, 1)}
    found = [(pair[0], *more) for pair, more in guidelines._all_pairs(cells)]
    assert sorted(found) == [
        ("all-gather is monotone", "max", "root 0"),
        *[("broadcast ≤ all-reduce", op, root) for op in ("max", "sum") for root in ("root 0", "root 1")],
    ]


def test_guidelines_hold_for_collectives_that_exist():
    assert all(rule.text for rule in guidelines.GUIDELINES)


def test_trust_counts_launches_names_graves_first_and_says_what_to_run(tmp_path):
    grave = {**HAZARD, "what": "oversubscribed: 4 ranks share 2 CPUs", "grave": True}
    loads = [{**HAZARD, "what": f"other programs run: load average {n} on 8 CPUs"} for n in (2, 3)]
    runs = [launch(0, hazards=[loads[0]]), launch(1, hazards=[loads[1], grave])]
    write_result(
        tmp_path / "r", {"builtin": {4: 1e-6}, "ring": {4: 1e-6}}, launches=2, run={"launches": runs}
    )
    data = loaded(tmp_path)
    found = trust.find(data)
    assert found[0].grave
    assert found[0].what == "oversubscribed: 4 ranks share 2 CPUs, in 1 of 2 launches"
    texts = [reason.what for reason in found]
    assert any("2 launches of each case" in text for text in texts)
    assert any(
        text.startswith("other programs run (") and "2 on 8" in text and "3 on 8" in text for text in texts
    )
    assert all(reason.next for reason in found)
    assert trust.section(data).words[0].startswith("NOT A PERFORMANCE RESULT, for 1 grave reason: oversub")


def test_launches_that_disagree_and_clocks_that_are_coarse_are_reasons(tmp_path):
    coarse = [{"what": "timer_resolution", "engine": None, "seconds": 1e-6, "samples": 9, "meaning": "m"}]
    for number in range(5):
        run = {"launches": [launch(hazards=[], overheads=coarse)]}
        times = {"builtin": {4: 1e-6 * (1 + number)}, "ring": {4: 1e-6 * (1 + number)}}
        write_result(tmp_path / str(number), times, seed=number, run=run)
    texts = [reason.what for reason in trust.find(loaded(tmp_path))]
    assert any("differ by up to 5.0 times" in text or "differ by up to 4.9 times" in text or
               "differ by up to 5.1 times" in text for text in texts)  # fmt: skip
    assert any("below 20 steps of the clock" in text for text in texts)


def test_nothing_known_is_said_where_nothing_is(tmp_path):
    run = {"launches": [launch(n, hazards=[], overheads=[]) for n in range(8)]}
    times = {"builtin": {4: 1e-6}, "ring": {4: 0.5e-6}}
    write_result(tmp_path / "r", times, launches=8, spread=0.005, run=run)
    assert trust.section(loaded(tmp_path)).words == ["Nothing known speaks against these numbers."]


def test_topology_is_shown_only_where_it_differs(tmp_path):
    times = {"builtin": {4: 1e-6}, "ring": {4: 1e-6}}
    write_result(tmp_path / "a", times)
    assert overview.topology(loaded(tmp_path)) is None
    places = [{"rank": r, "host": f"h{r % 2}", "node": r % 2, "cpus": str(r)} for r in range(4)]
    run = {"launches": [launch(ranks=4, nodes=2, ppn=2, placement=places)]}
    write_result(tmp_path / "b", times, ranks=4, nodes=2, ppn=2, run=run)
    section = overview.topology(loaded(tmp_path))
    (chart,) = section.charts.values()
    data = chart.to_dict()["datasets"]
    (rows,) = [rows for rows in data.values() if "where" in rows[0]]
    assert {row["where"] for row in rows} == {"2 = 1 × 2", "4 = 2 × 2, cyclic, bound"}


def test_an_oversubscribed_panel_is_no_result_in_the_summary_either(tmp_path):
    grave = {**HAZARD, "what": "oversubscribed", "grave": True}
    times = {"builtin": {4: 1e-6}, "ring": {4: 0.5e-6}}
    run = {"launches": [launch(n, hazards=[grave]) for n in range(6)]}
    write_result(tmp_path / "r", times, launches=6, run=run, oversubscribed=True)
    words = " ".join(overview.section(loaded(tmp_path)).words)
    assert "1 of the cases are no performance results" in words
    assert "largest gain" not in words


def test_a_section_walks_through_its_parts():
    inner = Section("Inner part", tables=[Table("t", ("a",), [("1",)])])
    assert [one.slug for one in Section("Outer", parts=[inner]).walk()] == ["outer", "inner-part"]


def test_what_was_calibrated_is_told_from_what_was_fitted(tmp_path, capsys):
    """Two models, each under a title of its own; the calibrated one with the file and its machine."""
    times = {4 << k: 1e-6 + 1e-10 * (4 << k) for k in range(16)}
    both = {"ring": times, "recursive_doubling": {n: 1.1 * time for n, time in times.items()}}
    folder = write_result(tmp_path / "r", both, iterations=3, launches=2)
    machine = uniform(1e-6, 1e-10, name="MPI of the calibration", host="box", cpu="Test CPU")
    (tmp_path / "mine.json").write_text(machine.to_json())
    mine = ["--calibration", str(tmp_path / "mine.json")]
    assert cli.main(["report", "--no-figures", *mine, str(folder)]) == 0
    told = capsys.readouterr().out
    _, by_calibration, fitted = re.split("Model and bound by calibration|Model fitted to these results", told)
    words = f"mine.json (digest {machine.digest}): MPI of the calibration, on host box with Test CPU."
    assert words in by_calibration
    assert "these results (no calibration)" in fitted


def test_what_links_cost_is_shown_for_every_calibration_beside_the_results(tmp_path):
    result = write_result(tmp_path / "r", {"builtin": {4: 1e-6}, "ring": {4: 1e-6}})
    assert links.section(loaded(tmp_path)) is None
    for level, alpha, beta in (("net", 7.5e-6, 8e-9), ("node", 1e-6, 1e-10)):
        folder = result / f"calibration-{level}"
        folder.mkdir()
        (folder / "machine.json").write_text(uniform(alpha, beta, name=f"X, {level}").to_json())
    (table,) = links.section(loaded(tmp_path)).tables
    assert [row[:4] for row in table.rows] == [
        ("calibration-net", "X, net", "7.51 µs", "0.125 GB/s"),
        ("calibration-node", "X, node", "1 µs", "10 GB/s"),
    ]


MINE = """
from mpicoll import Side, Window, algorithm
from mpicoll.schedule import exchange

@algorithm("allreduce", blocks=lambda size, p: 1)
def mine(rank, size):
    "Two ranks exchange everything."
    yield exchange(1 - rank, (Window(0),), (Window(0),), Side.LEFT if rank else Side.RIGHT)
"""


def test_a_report_shows_and_models_the_algorithm_of_the_file_that_the_sweep_loaded(tmp_path, capsys):
    """It is slower than `ring`: it is shown all the same, first, and has a model if its file is there."""
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    facts = loading.load([str(path)])
    unregister("allreduce", "mine")  # as in another process
    sizes = [2**k for k in range(2, 22)]
    times = {
        name: {size: factor * (2e-6 + 1e-9 * size) for size in sizes}
        for name, factor in (("builtin", 2), ("ring", 1), ("mine", 1.5), ("swing", 3))
    }
    asked = identity(spec={"algorithms": ["ring", "mine", "builtin"]}, loaded=loading.digests(facts))
    run = {"identity": asked, "launches": [launch(loaded=facts)]}
    result = str(write_result(tmp_path / "run", times, iterations=12, run=run))

    def report(*flags):
        assert cli.main(["report", result, "--no-figures", *flags]) == 0
        unregister("allreduce", "mine")
        return capsys.readouterr().out

    text = report()
    assert f"Loaded {path} (as the sweep did; it is unchanged): allreduce/mine." in text
    assert re.search(
        r"mine: 0\.\d+ to 0\.\d+ of the builtin's time; the quickest own algorithm at \d of 20", text
    )
    assert re.search(r"size +mine +ring\n +4 B +0\.7\d\? \(0\.\d+ to 0\.\d+\) +0\.[45]\d\? \(", text)
    assert "There is no model" not in text

    assert "(by --no-load)" in report("--no-load")
    path.write_text(MINE + "# another version")
    text = report()
    assert f"Not loaded: {path} (it has changed since). There is no model of allreduce/mine" in text
    assert "There is no model of mine: allreduce has no algorithm 'mine' (--load FILE.py brings one)." in text
    assert re.search(
        r"The algorithm predicted to win wins or ties in \d+ of 10 cases", text
    )  # the others stay
    assert f"Loaded {path} (by --load): allreduce/mine." in report("--load", str(path))

    other = {**facts[0], "digest": "another"}
    write_result(tmp_path / "other", times, iterations=12, run={**run, "launches": [launch(loaded=[other])]})
    assert cli.main(["report", result, str(tmp_path / "other"), "-o", str(tmp_path / "both")]) == 2
    assert "loaded two versions of" in capsys.readouterr().err


def test_a_report_runs_only_what_nobody_else_can_have_put_there(tmp_path, monkeypatch):
    """`run.json` and its digests may be a stranger's, and so may what lies in the folder of the reader."""
    monkeypatch.chdir(tmp_path)
    path, ended = tmp_path / "mine.py", tmp_path / "ends.py"
    path.write_text(MINE)
    ended.write_text("raise SystemExit(0)\n")
    Path("link.py").symlink_to(path)
    Path("folder.py").mkdir()
    Path("folder.py/__main__.py").write_text(MINE)
    (tmp_path / "mine.zip").write_text(MINE)
    digest = {place: loading._digest(tmp_path / place) for place in ("mine.py", "ends.py", "folder.py")}
    links = "only a .py file is run again, named by its full path without links"

    def report(named, of):
        facts = {"file": str(named), "digest": digest[of], "algorithms": ["allreduce/mine"]}
        (said,) = loading.for_report({"r": {"launches": [{"loaded": [facts]}]}}, (), again=True).words
        if said.startswith("Loaded"):
            unregister("allreduce", "mine")
        return said

    for named, of, why in (
        ("mine.py", "mine.py", links),
        ("/proc/self/cwd/mine.py", "mine.py", links),
        (f"{tmp_path}/link.py", "mine.py", links),
        (f"{tmp_path}/../{tmp_path.name}/mine.py", "mine.py", links),
        (f"{tmp_path}/mine.zip", "mine.py", links),
        (f"{tmp_path}/folder.py", "folder.py", "it is no regular file"),
        (f"{tmp_path}/absent.py", "mine.py", "No such file or directory"),
        ("/a\0b.py", "mine.py", "null byte"),
        (f"/{'a' * 5000}.py", "mine.py", "File name too long"),
        (ended, "ends.py", "SystemExit: 0"),
    ):
        said = report(named, of)
        assert said.startswith("Not loaded: ")
        assert why in said
    for place, mode, what in ((path, 0o664, "it"), (path, 0o646, "it"), (tmp_path, 0o757, "its folder")):
        before = place.stat().st_mode
        place.chmod(mode)
        assert f"others than its owner can write {what}: chmod go-w" in report(path, "mine.py")
        place.chmod(before)
    assert report(path, "mine.py") == "Loaded mine.py (as the sweep did; it is unchanged): allreduce/mine."
    if path.stat().st_uid:
        monkeypatch.setattr(loading.os, "getuid", lambda: path.stat().st_uid + 1)
    else:  # what belongs to root is run for everyone
        os.chown(path, 12345, -1)
    assert "it belongs to another user" in report(path, "mine.py")
    with pytest.raises(ArgumentError, match=r"ends\.py: SystemExit: 0"):
        loading.load([str(ended)])
