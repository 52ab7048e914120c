"""From samples to statements: medians, intervals, verdicts, and a report that says no more than it knows."""

import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from mpicoll.bench import cli
from mpicoll.bench.figures import FIGURES
from mpicoll.bench.frame import load
from mpicoll.bench.stats import compare, median_interval, panels, summarise, verdict, winners
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
    return summarise(load([write_result(tmp_path_factory.mktemp("a") / "run", TIMES)]).samples)


def cell(summary, contender, size):
    (found,) = summary[(summary["contender"] == contender) & (summary["msg_bytes"] == size)].to_dict(
        "records"
    )
    return found


def test_the_median_leaves_warm_up_out(summary):
    found = cell(summary, "builtin", 1024)
    assert found["median"] == pytest.approx(4e-6, rel=0.05)
    assert found["median_low"] < found["median"] < found["median_high"]
    assert (found["samples"], found["launches"]) == (40, 1)


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
    assert cli.main(["report", str(tmp_path / "r")]) == 0


def test_the_winner_is_a_contender_the_builtin_or_nobody(summary):
    ((key, panel),) = panels(summary)
    assert (key["collective"], key["ranks"]) == ("allreduce", 2)
    table = winners(panel)
    assert list(table["size"]) == ["4 B", "1 KiB", "64 KiB"]
    assert list(table["winner"]) == ["builtin", "tie", "ring"]
    assert list(table["contender"]) == ["tree", "ring", "ring"]


def test_pairs_cancel_what_strikes_both():
    """A disturbance common to both of a pair does not widen the ratio's interval."""
    rng = np.random.default_rng(3)
    index = pd.MultiIndex.from_tuples([("a", 0, i) for i in range(60)])
    common = np.exp(rng.normal(0, 1.0, 60))
    found = compare(pd.Series(0.9 * common, index), pd.Series(common, index))
    assert found["ratio"] == pytest.approx(0.9)
    assert found["ratio_low"] == pytest.approx(0.9)
    assert found["verdict"] == "faster"


def test_samples_without_a_partner_are_left_out_of_the_ratio():
    base = pd.Series([2.0, 2.0, 2.0], pd.MultiIndex.from_tuples([("a", 0, i) for i in range(3)]))
    own = pd.Series([1.0, 1.0, 1.0, 99.0], pd.MultiIndex.from_tuples([("a", 0, i) for i in (0, 1, 2, 7)]))
    assert compare(own, base)["ratio"] == 0.5
    elsewhere = pd.Series([1.0], pd.MultiIndex.from_tuples([("b", 0, 0)]))
    assert compare(elsewhere, base) == {}


def test_with_many_launches_the_interval_is_over_launches():
    """Within launches there is no spread at all; between them there is, and the interval shows it."""
    ratios = [0.8, 0.9, 1.0, 1.1, 1.2, 1.3]
    index = pd.MultiIndex.from_tuples([("a", n, i) for n in range(len(ratios)) for i in range(10)])
    own = pd.Series(np.repeat(ratios, 10), index)
    found = compare(own, pd.Series(1.0, index))
    assert found["verdict"] == "tie"
    assert found["ratio_low"] < 0.95
    assert found["ratio_high"] > 1.15
    assert found["launch_scatter"] == pytest.approx(1.3 / 0.8)


def test_the_interval_of_a_median_assumes_nothing_and_needs_six():
    assert np.isnan(median_interval(np.arange(5.0))).all()
    low, high = median_interval(np.arange(101.0))
    assert (low, high) == (40.0, 60.0)
    rng = np.random.default_rng(0)
    hits = sum(
        low <= np.log(2) <= high
        for low, high in (median_interval(rng.exponential(size=25)) for _ in range(400))
    )
    assert hits >= 0.93 * 400


def noise(rng):
    index = pd.MultiIndex.from_tuples([("a", 0, i) for i in range(40)])
    return pd.Series(np.exp(rng.normal(0, 0.2, 40)), index)


def test_builtin_against_builtin_is_rarely_decided():
    """Two equal contenders: fewer than one verdict in ten other than a tie."""
    rng = np.random.default_rng(5)
    verdicts = [compare(noise(rng), noise(rng))["verdict"] for _ in range(120)]
    assert verdicts.count("tie") >= 0.9 * 120


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(0.5, 0.9, "faster"), (1.1, 2, "slower"), (0.9, 1.1, "tie"), (float("nan"), 1, "undecided")],
)
def test_verdicts(low, high, words):
    assert verdict(low, high) == words


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
    assert cli.main(["report", str(tmp_path / "r")]) == 1


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
    assert list(found[found["contender"] == "ring"]["verdict"]) == ["slower", "faster"]


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
    assert "The best own algorithm is faster at 1, tied at 1, slower at 1 of 3 sizes" in text
    assert "NOT A PERFORMANCE RESULT (too many ranks)." in text
    assert re.search(r"64 KiB +ring +ring +1[45][.\d]* µs", text)
    assert "! a hazard: spoils <numbers>. To fix: fix it" in text
    assert "! Unsupported: halving in 1 cases" in text
    assert "one launch only" in text


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


def test_each_figure_is_an_svg_and_a_png(reported):
    folder = reported[0] / "figures"
    assert {path.name.partition("-")[0] for path in folder.iterdir()} == set(FIGURES)
    for path in folder.iterdir():
        head = path.read_bytes()[:100]
        assert head.startswith(b"\x89PNG" if path.suffix == ".png" else b"<svg")


def test_the_page_needs_nothing_else(reported):
    """No address is loaded; the charts' data and program are inside; what is text stays text."""
    page = (reported[0] / "report.html").read_text()
    markup = re.sub(r"(<script[^>]*>).*?</script>", r"\1", page, flags=re.DOTALL)
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", markup)
    assert "@import" not in markup
    assert "url(" not in markup
    specs = re.findall(
        r'<script type="application/json" class="spec" data-chart="([^"]+)">(.*?)</script>', page
    )
    assert len(specs) == len(FIGURES)
    for chart, text in specs:
        assert f'id="{chart}"' in page
        assert json.loads(text)["datasets"]
    assert "<b>P=3</b>" not in page
    assert "&lt;b&gt;P=3&lt;/b&gt;" in page
    assert "spoils &lt;numbers&gt;" in page
    for words in ("Test CPU", "0123456789ab", "a round", "MPIR_X=1", "NOT A PERFORMANCE RESULT"):
        assert words in page


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
