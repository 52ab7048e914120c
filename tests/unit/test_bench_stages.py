"""Stage times: from what ranks noted to rows, a file and a section of the report."""

from __future__ import annotations

import csv

import pandas as pd
import pytest

from mpicoll.bench import cli
from mpicoll.bench.stage_panel import middle
from mpicoll.bench.stages import COLUMNS, NAME, StageFile, path_of, rows_of_stages
from mpicoll.bench.store import StoreError
from synthetic import write_result

LEADER = {"intra reduce": 1.0, "inter all-reduce": 5.0, "intra broadcast": 2.0}
OTHER = {"intra reduce": 0.5, "intra broadcast": 7.9}


def common(**changes):
    return {
        "launch": 0, "case": 1, "pass": 0, "collective": "allreduce", "requested": "leader",
        "algorithm": "leader", "engine": "native", "dtype": "float32", "op": "sum", "root": 0, "ranks": 2,
        "nodes": 2, "ppn": 1, "count": 1, "msg_bytes": 4, "cache": "warm", "not in the file": 3, **changes,
    }  # fmt: skip


def rows(name="leader", size=4, scale=1.0):
    ranks = [{stage: scale * took for stage, took in seconds.items()} for seconds in (LEADER, OTHER)]
    return rows_of_stages([ranks, ranks], common(requested=name, msg_bytes=size))


def test_the_path_is_the_slowest_of_those_that_take_part_in_all_stages():
    assert path_of([OTHER, LEADER, {**LEADER, "intra reduce": 0.1}]) is LEADER


def test_a_row_tells_the_longest_and_the_path():
    found = {(row["iteration"], row["stage"]): row for row in rows()}
    assert len(found) == 6
    assert [found[0, stage]["seconds"] for stage in LEADER] == [1.0, 5.0, 7.9]
    assert [found[1, stage]["path_seconds"] for stage in LEADER] == [1.0, 5.0, 2.0]
    assert [found[0, stage]["members"] for stage in LEADER] == [2, 1, 2]
    assert [found[0, stage]["position"] for stage in LEADER] == [0, 1, 2]
    assert set(found[0, "intra reduce"]) <= set(COLUMNS)


def test_a_stage_off_the_path_has_no_time_on_it():
    (only,) = [row for row in rows_of_stages([[{"a": 1.0, "b": 1.0}, {"c": 9.0}]], {}) if row["stage"] == "c"]
    assert (only["seconds"], only["path_seconds"], only["members"]) == (9.0, None, 1)


def test_the_file_is_continued_without_a_row_that_was_cut_off(tmp_path):
    StageFile(tmp_path).append(rows())
    path = tmp_path / NAME
    whole = path.read_bytes()
    path.write_bytes(whole + b"0,1,0,allred")
    StageFile(tmp_path).append(rows())
    assert path.read_bytes() == whole + whole.partition(b"\n")[2]
    with path.open(newline="") as file:
        assert tuple(next(csv.reader(file))) == COLUMNS
    path.write_bytes(b"another,program\n")
    with pytest.raises(StoreError, match="other columns"):
        StageFile(tmp_path)


def test_medians_and_shares_of_several_stages_only():
    flat = rows_of_stages([[{"all": 3.0}, {"all": 4.0}]], common(requested="ring"))
    medians = middle(pd.DataFrame([*rows(), *rows(size=1024, scale=2.0), *flat]))
    assert set(medians["requested"]) == {"leader"}
    assert list(medians["seconds"]) == [1.0, 5.0, 2.0, 2.0, 10.0, 4.0]
    assert list(medians["share"]) == [0.125, 0.625, 0.25] * 2


def test_engines_and_roots_are_shown_apart(tmp_path, capsys):
    directory = write_result(tmp_path / "run", {"builtin": {4: 2e-6}, "leader": {4: 1e-6}})
    file = StageFile(directory)
    for engine, root, scale in (("native", 0, 1e-6), ("python", 0, 1e-5), ("native", 1, 1e-4)):
        file.append([{**one, "engine": engine, "root": root} for one in rows(scale=scale)])
    assert cli.main(["report", str(directory), "--no-figures"]) == 0
    out = capsys.readouterr().out
    assert "leader (native) spends 62 % on inter all-reduce; leader (python) spends" in out
    assert " from root 0, " in out
    assert " from root 1, " in out


def test_the_report_has_a_section(tmp_path, capsys):
    directory = write_result(tmp_path / "run", {"builtin": {4: 2e-6}, "leader": {4: 1e-6}})
    StageFile(directory).append(rows(scale=1e-6))
    with (directory / NAME).open("a") as file:
        file.write("0,1,0,allred")
    assert cli.main(["report", str(directory)]) == 0
    out = capsys.readouterr().out
    assert "At 4 B, leader spends 62 % on inter all-reduce." in out
    assert f"{directory / NAME} ends in the middle of a row, which is left out." in out
    page = (directory / "report.html").read_text()
    assert "Median time of each stage." in page
    assert list((directory / "figures").glob("stages-*.svg"))
