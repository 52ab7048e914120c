"""Texts in other benchmarks' layouts: read by parsers of the kinds in use, and by our own readers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mpicoll.bench import cli, formats, frame
from mpicoll.bench.foreign import read_nccl, read_osu
from mpicoll.errors import ArgumentError

SAMPLES = Path(__file__).parent / "foreign"


@pytest.fixture
def results(tmp_path):
    def imported(program, name, *flags):
        cli.main(["import", program, str(SAMPLES / name), "-o", str(tmp_path / "r"), *flags])
        return tmp_path / "r"

    return imported


def test_osu_layout_is_read_as_reframe_and_others_read_it(results, capsys):
    directory = results("osu", "osu_allreduce.txt", "--ranks", "4")
    capsys.readouterr()
    assert cli.main(["report", str(directory), "--format", "osu"]) == 0
    out = capsys.readouterr().out
    assert not (directory / "report.html").exists()
    # ReFrame's tests ask for one size by its line, and for the title.
    assert re.search(r"OSU MPI Allreduce Latency Test", out)
    assert re.search(r"^8\s+(\S+)", out, re.MULTILINE)[1] == "1.80"
    # Others split lines that do not begin with a hash.
    rows = [line.split() for line in out.splitlines() if line and not line.startswith("#")]
    assert [int(row[0]) for row in rows] == [4, 8, 1024, 16384, 1048576]
    assert {len(row) for row in rows} == {5}
    # Columns stand where osu_allreduce -f has them.
    original = (SAMPLES / "osu_allreduce.txt").read_text().splitlines()
    assert original[3] in out.splitlines()
    assert {line.index(".") for line in out.splitlines() if line[:1].isdigit()} == {
        line.index(".") for line in original if line[:1].isdigit()
    }
    again = read_osu(out).tables[0]
    assert (again.lines[0].nbytes, again.lines[0].seconds) == (4, 1.79e-6)


def superbench_style(text):
    """Columns by the first of their names in the header line between two landmarks."""
    lines = text.splitlines()
    first = next(k for k, line in enumerate(lines) if "out-of-place" in line)
    last = next(k for k, line in enumerate(lines) if "Out of bounds values" in line)
    header = next(line for line in lines[first:last] if "time" in line and "busbw" in line)
    names = header[1:].split()
    at = {name: names.index(name) for name in ("size", "time", "algbw", "busbw")}
    rows = [line.split() for line in lines[first:last] if re.match(r"\s*\d+", line)]
    return {
        int(row[at["size"]]): tuple(float(row[at[n]]) for n in ("time", "algbw", "busbw")) for row in rows
    }


def test_nccl_layout_is_read_as_others_read_it(results, capsys):
    directory = results("nccl", "nccl_all_reduce.txt")
    capsys.readouterr()
    assert cli.main(["report", str(directory), "--format", "nccl"]) == 0
    out = capsys.readouterr().out
    first, second = (f"# measured{part}" for part in out.split("# measured")[1:])
    assert "nccl, 8 ranks on 2 nodes" in first
    assert "nccl in place" in second
    original = (SAMPLES / "nccl_all_reduce.txt").read_text()
    assert superbench_style(first) == superbench_style(original)
    for line in original.splitlines():
        if line.startswith("#") and ("redop" in line or "(elements)" in line or "out-of-place" in line):
            assert line.rstrip() in [own.rstrip() for own in first.splitlines()]
    # A pattern of whole lines, in-place columns being whatever is there.
    pattern = r"^\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)\s+\S+"
    assert len(re.findall(pattern, first, re.MULTILINE)) == 5
    assert float(re.search(r"Avg bus bandwidth\s+: ([0-9.]+)", first)[1]) == pytest.approx(130.2, abs=0.3)
    again = read_nccl(first, ranks=8)
    assert again.tables[0].collective == "allreduce"
    assert [line.contender for line in again.tables[0].lines] == ["nccl"] * 5  # nothing was measured in place


def test_a_wrong_result_has_no_line_and_is_named(results):
    samples = frame.load([results("osu", "osu_several.txt", "--ranks", "4")]).samples
    text = formats.as_format(samples, "osu")
    part = text[text.index("# OSU MPI All-to-All") - 120 :]
    assert "# left out: 64 B: wrong" in part
    assert not re.search(r"^64 ", part, re.MULTILINE)
    assert "Out of bounds values : 1 FAILED" in formats.as_format(samples, "nccl")


def test_an_unknown_format_is_refused():
    with pytest.raises(ArgumentError, match="known: osu, nccl"):
        formats.as_format(None, "imb")
