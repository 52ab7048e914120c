"""From samples to statements: medians, intervals, verdicts, and a report that says no more than it knows."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mpicoll.bench import cli, grids, records
from mpicoll.bench.figures import FIGURES, quantiles
from mpicoll.bench.frame import load
from mpicoll.bench.sections import SECTIONS, Section, find
from mpicoll.bench.stats import compare, panels, summarise, winners
from mpicoll.bench.store import StoreError
from synthetic import HAZARD, identity, launch, row, write_result

TIMES = {
    "builtin": {4: 2e-6, 1024: 4e-6, 65536: 30e-6},
    "builtin_persistent": {4: 1.9e-6, 1024: 4e-6, 65536: 30e-6},
    "ring": {4: 4e-6, 1024: 4e-6, 65536: 15e-6},
    "tree": {4: 3e-6, 1024: 6e-6},
}

UNTIMED = {"seconds": None, "iteration": None, "warmup": None}


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    result = write_result(tmp_path_factory.mktemp("a") / "run", TIMES, launches=6)
    return summarise(load([result]).samples)


def cell(summary, contender, size):
    (found,) = summary[(summary["contender"] == contender) & (summary["msg_bytes"] == size)].to_dict(
        "records"
    )
    return found


def test_the_median_leaves_warm_up_out(summary):
    found = cell(summary, "builtin", 1024)
    assert found["median"] == pytest.approx(4e-6, rel=0.05)
    assert found["median_low"] < found["median"] < found["median_high"]
    assert (found["samples"], found["launches"]) == (240, 6)


def test_the_ratio_is_paired_and_has_an_interval(summary):
    found = cell(summary, "ring", 65536)
    assert found["ratio"] == pytest.approx(0.5, rel=0.05)
    assert found["ratio_low"] < found["ratio"] < found["ratio_high"] < 0.6
    assert found["verdict"] == "faster"
    assert cell(summary, "ring", 4)["verdict"] == "slower"
    assert cell(summary, "ring", 1024)["verdict"] == "tie"
    assert cell(summary, "builtin", 4)["verdict"] == "baseline"


def test_what_was_not_measured_is_not_there(summary):
    assert summary[(summary["contender"] == "tree") & (summary["msg_bytes"] == 65536)].empty


def test_bandwidths_are_those_of_nccl_tests(summary):
    """All-reduce on two ranks: algbw = n/t, busbw = 2(P-1)/P of it = the same."""
    found = cell(summary, "ring", 65536)
    assert found["algbw"] == pytest.approx(65536 / 15e-6 / 1e9, rel=0.05)
    assert found["busbw"] == pytest.approx(found["algbw"])


def test_one_rank_has_no_bus(tmp_path):
    found = summarise(load([write_result(tmp_path / "r", {"ring": {64: 1e-6}}, ranks=1)]).samples)
    assert found["algbw"].notna().all()
    assert "busbw" not in found or found["busbw"].isna().all()


def test_without_a_builtin_there_is_no_ratio_and_no_winner(tmp_path):
    found = summarise(load([write_result(tmp_path / "r", {"ring": {4: 1e-6}})]).samples)
    assert found["ratio"].isna().all()
    ((_, panel),) = panels(found)
    table = winners(panel)
    assert table["winner"].isna().all()
    assert cli.main(["report", "--no-figures", str(tmp_path / "r")]) == 0


def test_the_winner_is_a_contender_the_builtin_or_nobody(summary):
    ((key, panel),) = panels(summary)
    assert (key["collective"], key["ranks"]) == ("allreduce", 2)
    table = winners(panel)
    assert list(table["size"]) == ["4 B", "1 KiB", "64 KiB"]
    assert list(table["winner"]) == ["builtin", "tie", "ring"]
    assert list(table["contender"]) == ["tree", "ring", "ring"]


INDEX = ["source", "launch", "case", "pass", "iteration"]


def series(values):
    """Times of one launch."""
    index = pd.MultiIndex.from_tuples([("a", 0, 0, 0, i) for i in range(len(values))], names=INDEX)
    return pd.Series(np.asarray(values, float), index)


def test_pairs_cancel_what_strikes_both():
    """A disturbance common to both of a pair does not widen the ratio's interval."""
    common = np.exp(np.random.default_rng(3).normal(0, 1.0, 60))
    found = compare(series(0.9 * common), series(common))
    assert found.ratio == pytest.approx(0.9)
    assert found.hull == pytest.approx((0.9, 0.9))


def test_samples_without_a_partner_are_left_out_of_the_ratio():
    base, own = series([2.0, 2.0, 2.0, 2.0]), series([1.0, 1.0, 1.0, 99.0])
    assert compare(own, base.iloc[:3]).ratio == 0.5
    assert compare(own.rename(index={"a": "b"}), base) is None


def test_unsupported_and_wrong_rows_have_no_time(tmp_path):
    extra = [
        row(requested="halving", status="unsupported", reason="P=3 is no power of two", **UNTIMED),
        row(requested="broken", status="wrong", reason="rank 1 element 3", seconds=1e-9),
        row(requested="builtin", seconds=1e-6),
    ]  # fmt: skip
    results = load([write_result(tmp_path / "r", {"ring": {4: 1e-6}}, extra=extra)])
    found = summarise(results.samples)
    assert cell(found, "halving", 1024)["status"] == "unsupported"
    assert cell(found, "broken", 1024)["status"] == "wrong"
    assert found[found["contender"].isin(["halving", "broken"])]["median"].isna().all()
    assert not found[found["contender"] == "broken"]["best_own"].any()
    assert cli.main(["report", "--no-figures", str(tmp_path / "r")]) == 1
    assert not (tmp_path / "r" / "figures").exists()


def test_an_unfinished_case_is_left_out_with_a_note(tmp_path):
    directory = write_result(tmp_path / "r", {"ring": {4: 1e-6, 8: 1e-6}})
    path = directory / "samples.csv"
    path.write_bytes(path.read_bytes()[:-100])
    results = load([directory])
    assert set(results.samples["msg_bytes"]) == {4}
    assert "unfinished case" in results.notes[0]


def test_different_libraries_are_never_pooled(tmp_path):
    a = write_result(tmp_path / "a", {"builtin": {4: 1e-6}, "ring": {4: 2e-6}})
    b = write_result(tmp_path / "b", {"builtin": {4: 9e-6}, "ring": {4: 3e-6}}, seed=2,
                     run={"identity": identity("Other MPI")})  # fmt: skip
    with pytest.raises(StoreError, match=r"MPI library: Test MPI 1.0 in .*a; Other MPI in .*b\n.*--across"):
        load([a, b])
    results = load([a, b], across=True)
    assert len(results.environments) == 2
    found = summarise(results.samples)
    assert len(found) == 4
    assert list(found[found["contender"] == "ring"]["leaning"]) == ["slower", "faster"]


def test_a_difference_deep_in_a_description_is_seen_and_named(tmp_path):
    for name, device in (("a", "ucx"), ("b", "ofi")):
        write_result(tmp_path / name, TIMES, run={"identity": identity(f"MPICH 5\nDevice: {device}")})
    with pytest.raises(StoreError, match=r"Device: ucx in .*; Device: ofi in"):
        load([tmp_path])


def test_a_campaign_is_all_runs_beneath_it(tmp_path):
    """A launch is a run directory and a number; what a campaign varies makes groups, and is not refused."""
    for number in range(3):
        write_result(tmp_path / "launches" / f"l{number}", TIMES, seed=number)
    tuned = {"launches": [launch(environment={"MPIR_CVAR_A": "1"})]}
    write_result(tmp_path / "launches" / "tuned", TIMES, run=tuned)
    (tmp_path / "campaign.json").write_text("{}")
    results = load([tmp_path, tmp_path / "launches" / "l0"])
    assert len(results.runs) == 4
    found = summarise(results.samples)
    assert found.groupby("settings")["launches"].max().to_dict() == {"MPIR_X=1": 3, "MPIR_CVAR_A=1": 1}


def test_a_run_cut_off_before_its_first_case_is_noted(tmp_path):
    write_result(tmp_path / "a", TIMES)
    write_result(tmp_path / "b", {})
    assert "holds no finished case" in load([tmp_path]).notes[0]


def test_equal_conditions_are_one_environment_with_several_launches(tmp_path):
    names = [
        write_result(tmp_path / str(n), {"builtin": {4: 1e-6}, "ring": {4: 0.5e-6}}, seed=n) for n in range(6)
    ]
    found = summarise(load(names).samples)
    assert list(found["launches"]) == [6, 6]
    assert cell(found, "ring", 4)["verdict"] == "faster"


def test_a_directory_without_a_result_is_refused(tmp_path, capsys):
    with pytest.raises(StoreError, match="holds no result"):
        load([tmp_path])
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "holds no result" in capsys.readouterr().err
    assert cli.main(["report", str(tmp_path), str(tmp_path / "b")]) == 2


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """A report written by the command, of a result with something of everything in it."""
    extra = [
        row(
            requested="halving",
            status="unsupported",
            reason="<b>P=3</b>",
            seconds=None,
            iteration=None,
            warmup=None,
        )
    ]
    graver = {**HAZARD, "what": "too many ranks", "grave": True}
    directory = write_result(
        tmp_path_factory.mktemp("b") / "run",
        TIMES,
        extra=extra,
        run={"launches": [launch(hazards=[HAZARD, graver])]},
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-m", "mpicoll", "report", str(directory)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return directory, result.stdout


def test_the_terminal_gets_the_essence(reported):
    _, text = reported
    assert "undecided at 3 of 3 sizes." in text
    assert "1 launch: a verdict needs 5; by their intervals alone faster at 1, " in text
    assert "NOT A PERFORMANCE RESULT (too many ranks)." in text
    assert re.search(r"64 KiB +undecided +faster +ring +1[45][.\d]* µs", text)
    assert "! a hazard; spoils <numbers>; fix it" in text
    assert "! grave; too many ranks; spoils <numbers>; fix it" in text
    assert "! unsupported: halving in 1 cases, the first: <b>P=3</b>; " in text
    assert "! 1 launch of each case; " in text


def test_the_summary_is_tidy(reported):
    frame = pd.read_csv(reported[0] / "summary.csv")
    assert {
        "median",
        "p10",
        "p90",
        "min",
        "samples",
        "ratio",
        "ratio_low",
        "ratio_high",
        "verdict",
        "algbw",
        "busbw",
    } <= set(frame)
    assert frame["msg_bytes"].dtype == np.int64
    assert len(frame) == 12


def test_one_line_reads_the_summary_with_its_types(reported):
    """The line that docs/report.md gives."""
    frame = pd.read_csv(reported[0] / "summary.csv")
    kinds = {"msg_bytes": "i", "launches": "i", "median": "f", "ratio": "f", "p_holm": "f", "best_own": "b",
             "oversubscribed": "b"}  # fmt: skip
    assert {name: frame[name].dtype.kind for name in kinds} == kinds
    assert set(frame["verdict"].dropna()) == {"undecided", "baseline"}
    assert frame.loc[frame["status"] == "unsupported", "median"].isna().all()


def test_each_figure_is_an_svg_and_a_png(reported):
    folder = reported[0] / "figures"
    names = {*FIGURES, "distribution", "overview"}
    assert {path.name.partition("-")[0] for path in folder.iterdir()} == names
    assert len(list(folder.iterdir())) == 2 * len(names)
    for path in folder.iterdir():
        head = path.read_bytes()[:100]
        assert head.startswith(b"\x89PNG" if path.suffix == ".png" else b"<svg")


def script(page, name):
    """The content of one of the page's data scripts."""
    (text,) = re.findall(f'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_a_section_with_a_long_title_has_files_of_its_own():
    long = ["MPI settings " + "X=1 " * 80 + end for end in "ab"]
    slugs = {Section(title).slug for title in long}
    assert len(slugs) == 2
    assert max(map(len, slugs)) <= 120


def test_the_page_needs_nothing_else(reported):
    """No address is loaded; the charts' data and program are inside; what is text stays text."""
    page = (reported[0] / "report.html").read_text()
    markup = re.sub(r"(<script[^>]*>).*?</script>", r"\1", page, flags=re.DOTALL)
    loaded = re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"([^\"]*)", markup)
    assert loaded == ["data:,"]
    assert "@import" not in markup
    assert "url(" not in markup
    specs, datasets = script(page, "specs"), script(page, "datasets")
    assert len(specs) == len(FIGURES) + 2
    for chart, spec in specs.items():
        assert f'id="{chart}"' in page
        assert spec["usermeta"]["datasets"]
        assert all(datasets[name] for name in spec["usermeta"]["datasets"])
    assert "<b>P=3</b>" not in page
    assert "&lt;b&gt;P=3&lt;/b&gt;" in page
    assert "spoils &lt;numbers&gt;" in page
    for words in ("Test CPU", "0123456789ab", "a round", "MPIR_X=1", "NOT A PERFORMANCE RESULT"):
        assert words in page


def test_the_page_holds_the_samples_with_outliers_flagged(reported):
    columns = {
        one["name"]: one
        for one in script((reported[0] / "report.html").read_text(), "samples-data")["columns"]
    }
    samples = load([reported[0]]).samples
    seconds = [value for value in columns["seconds [µs]"]["values"] if value is not None]
    assert seconds == pytest.approx(list(samples["seconds"].dropna() * 1e6), rel=1e-4)
    flags = columns["outlier"]
    assert set(flags["levels"]) == {"yes", "no"}
    assert (
        flags["values"].count(flags["levels"].index("yes"))
        == pd.read_csv(reported[0] / "summary.csv")["outliers"].sum()
    )


def test_too_many_samples_are_capped_evenly_and_it_is_said(reported, monkeypatch):
    samples = load([reported[0]]).samples
    monkeypatch.setattr(grids, "MOST_SAMPLES", 100)
    grid, note = grids.samples_grid(samples)
    (contender,) = [one for one in grid["columns"] if one["name"] == "contender"]
    assert len(contender["values"]) <= 100
    assert set(contender["levels"]) == set(samples["contender"])
    assert note.startswith(f"{len(contender['values'])} of {len(samples)} rows")


def test_every_entry_of_the_list_of_sections_is_a_function():
    assert all(callable(find(address)) for address in SECTIONS)


def test_measuring_and_listing_import_nothing_heavy():
    """Ten thousand ranks that import pandas from a shared disk are an outage."""
    code = (
        "import sys; from mpicoll.bench import cli; cli.make_parser(); import mpicoll.bench.session; "
        "print([m for m in ('pandas', 'altair', 'jinja2', 'tqdm', 'mpi4py.MPI') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "[]"


def refused(capsys, *words):
    """What is said of a command that cannot be carried out: one line."""
    assert cli.main(list(map(str, words))) == 2
    said = capsys.readouterr().err
    assert said.startswith("mpicoll: ")
    assert said.count("\n") == 1, said
    return said


@pytest.mark.parametrize("content", ["", "[]", "null", "{", '{"schema": 2}', '{"schema": 2, "identity": {}}'])
def test_a_broken_record_is_refused_in_a_line(tmp_path, capsys, content):
    write_result(tmp_path / "r", {"builtin": {4: 1e-6}})
    (tmp_path / "r" / "run.json").write_text(content)
    assert "run.json" in refused(capsys, "report", tmp_path / "r")
    assert "run.json" in refused(capsys, "compare", tmp_path / "r", tmp_path / "r")


@pytest.mark.parametrize("column", ["case_rows", "seconds", "count"])
def test_broken_samples_are_refused_in_a_line(tmp_path, capsys, column):
    path = write_result(tmp_path / "r", {"builtin": {4: 1e-6}}) / "samples.csv"
    header, first, *rest = path.read_text().splitlines(keepends=True)
    fields = first.split(",")
    fields[header.split(",").index(column)] = "x"
    path.write_text("".join([header, ",".join(fields), *rest]))
    assert "samples.csv" in refused(capsys, "report", tmp_path / "r")


def test_a_report_that_cannot_be_written_says_so_in_a_line(tmp_path, capsys):
    write_result(tmp_path / "r", {"builtin": {4: 1e-6}})
    file = tmp_path / "file"
    file.touch()
    assert f"{file}: File exists" in refused(capsys, "report", tmp_path / "r", "-o", file)


def test_a_result_under_two_names_is_one_result(tmp_path, monkeypatch):
    write_result(tmp_path / "r", {"builtin": {4: 1e-6}})
    (tmp_path / "link").symlink_to(tmp_path / "r")
    monkeypatch.chdir(tmp_path)
    found = load([Path("r"), tmp_path / "r", tmp_path / "link"])
    assert list(found.runs) == ["r"]


def test_the_interval_of_few_launches_holds_their_median(tmp_path):
    """Many calls of the one launch and few of the other: of all together, no interval reaches the middle."""
    for name, seconds, number in (("a", 1e-6, 200), ("b", 3e-6, 20)):
        write_result(tmp_path / name, {"builtin": {4: seconds}}, iterations=number)
    (found,) = summarise(load([tmp_path]).samples).to_dict("records")
    assert found["launches"] == 2
    assert found["median_low"] < 1e-6 < found["median"] < 3e-6 < found["median_high"]


def test_a_late_sample_is_in_no_statistic(tmp_path):
    size = {"count": 1, "msg_bytes": 4, "total_bytes": 4}
    late = row(requested="builtin", iteration=900, late=True, seconds=1.0, **size)
    samples = load([write_result(tmp_path / "r", {"builtin": {4: 1e-6}}, extra=[late])]).samples
    (found,) = summarise(samples).to_dict("records")
    assert found["samples"] == 40
    assert found["max"] < 1e-3
    assert quantiles(samples)["seconds"].max() < 1e-3
    assert grids.flag_outliers(samples)[samples["late"].fillna(False)].isna().all()


def test_a_full_disk_is_said_of_the_file_and_leaves_no_half_of_it(tmp_path, capsys, monkeypatch):
    directory = write_result(tmp_path / "r", {"ring": {4: 1e-6}})
    (directory / "summary.csv").write_text("of the day before\n")

    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(records.os, "fsync", full)
    before = sorted(directory.iterdir())
    assert cli.main(["report", "--no-figures", str(directory)]) == 2
    assert capsys.readouterr().err == f"mpicoll: {directory}/summary.csv: No space left on device\n"
    assert sorted(directory.iterdir()) == before
    assert (directory / "summary.csv").read_text() == "of the day before\n"


@pytest.mark.parametrize(
    "broken",
    [
        {"launches": ["text"]},
        {"launches": [{}]},
        {"launches": [{**launch(), "mpi": None}]},
        {"launches": [{**launch(), "placement": [{"rank": 0, "node": 0, "cpus": 1}]}]},
        {"launches": {"0": launch()}},
        {"identity": []},
        {"launches": [{**launch(), "loaded": [{"file": "a.py", "digest": "0"}]}]},
        {"launches": [{**launch(), "loaded": [{"file": "a.py", "digest": "0", "algorithms": [1]}]}]},
    ],
)
def test_a_broken_record_is_said_in_a_line(tmp_path, capsys, broken):
    directory = write_result(tmp_path / "r", {"ring": {4: 1e-6}}, run=broken)
    for words in (["report", "--no-figures"], ["report", "--format", "osu"], ["compare", str(directory)]):
        assert cli.main([*words, str(directory)]) == 2
        said = capsys.readouterr().err
        assert said == f"mpicoll: {directory}/run.json does not say how anything was measured; leave it out\n"


def test_a_fraction_where_none_can_be_is_said_in_a_line(tmp_path, capsys):
    path = write_result(tmp_path / "r", {"ring": {4: 1e-6}}) / "samples.csv"
    path.write_text(path.read_text().replace(",sum,0,", ",sum,1.5,", 1))
    assert cli.main(["report", "--no-figures", str(tmp_path / "r")]) == 2
    assert capsys.readouterr().err.startswith(f"mpicoll: {path} holds what is no sample: ")
