"""`mpicoll compare`: what changed is found, what did not is not, and CI hears of it by the exit status."""

import io
import json

import pandas as pd
import pytest

from mpicoll.bench import cli
from mpicoll.bench.compare import parse_percentage
from mpicoll.errors import ArgumentError
from synthetic import HAZARD, identity, launch, write_result

OLD = {"builtin": {64: 2e-6, 4096: 8e-6}, "ring": {64: 3e-6, 4096: 6e-6}}
WORSE = {"builtin": {64: 2e-6, 4096: 8e-6}, "ring": {64: 3e-6, 4096: 7.5e-6}}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Six launches each: of old, of the same again, of one with a slower ring, and two launches of that."""
    folder = tmp_path_factory.mktemp("compare")
    write_result(folder / "old", OLD, launches=6, iterations=15, seed=1)
    write_result(folder / "same", OLD, launches=6, iterations=15, seed=2)
    write_result(folder / "worse", WORSE, launches=6, iterations=15, seed=3)
    write_result(folder / "few", WORSE, launches=2, iterations=15, seed=4)
    halved = {name: {size: 2 * t for size, t in times.items()} for name, times in OLD.items()}
    grave = {**HAZARD, "what": "oversubscribed", "grave": True}
    slow = {"identity": {**identity(), "cpu_model": "Slow CPU"},
            "launches": [launch(n, hazards=[grave]) for n in range(6)]}  # fmt: skip
    write_result(folder / "slow-machine", halved, launches=6, iterations=15, seed=5, run=slow)
    return folder


def compared(capsys, results, *words):
    status = cli.main(["compare", *(str(results / word) if word[0] != "-" else word for word in words)])
    return status, capsys.readouterr().out


def test_the_same_again_is_no_regression(capsys, results):
    status, text = compared(capsys, results, "old", "same")
    assert status == 0
    assert "4 comparisons of times, new / old: 4 unchanged." in text
    assert "0 regressions of more than 5.0%." in text


def test_a_slower_case_is_found_named_and_status_1(capsys, results):
    status, text = compared(capsys, results, "old", "worse")
    assert status == 1
    (line,) = [line for line in text.splitlines() if "REGRESSION" in line]
    assert line.split()[:6] == ["allreduce", "float32", "sum", "2", "4", "KiB"]
    assert "ring" in line
    assert "1.2" in line
    assert compared(capsys, results, "worse", "old")[0] == 0  # faster is no regression


def test_a_threshold_forgives_and_a_contender_chooses(capsys, results):
    assert compared(capsys, results, "old", "worse", "--threshold=40%")[0] == 0
    assert compared(capsys, results, "old", "worse", "--contender=builtin")[0] == 0


def test_few_launches_decide_nothing_and_it_is_said(capsys, results):
    status, text = compared(capsys, results, "old", "few")
    assert status == 0
    assert "Some have 2 launches on a side: a verdict needs 5 on each." in text


def test_a_slower_machine_changes_times_but_not_ratios(capsys, results):
    status, text = compared(capsys, results, "old", "slow-machine")
    assert status == 1
    assert "conditions differ in cpu_model: Test CPU → Slow CPU" in text
    assert "the new side is NOT A PERFORMANCE RESULT: oversubscribed" in text
    status, text = compared(capsys, results, "old", "slow-machine", "--of=ratio")
    assert status == 0
    assert "2 comparisons of ratios" in text


def test_everything_as_json_and_as_csv(capsys, results):
    status, text = compared(capsys, results, "old", "worse", "--json")
    found = json.loads(text)
    assert (status, found["regressions"], len(found["rows"])) == (1, 1, 4)
    (bad,) = [row for row in found["rows"] if row["regression"]]
    assert bad["ratio"] == pytest.approx(1.25, rel=0.05)
    assert bad["p_holm"] <= 0.05
    frame = pd.read_csv(io.StringIO(compared(capsys, results, "old", "worse", "--csv")[1]))
    assert frame["regression"].sum() == 1
    assert list(frame["change"]).count("unchanged") == 3


def test_wrong_usage_is_status_2(capsys, results, tmp_path):
    assert compared(capsys, results, "old", "same", "--threshold=much")[0] == 2
    write_result(tmp_path / "other", {"builtin": {128: 1e-6}})
    assert cli.main(["compare", str(results / "old"), str(tmp_path / "other")]) == 2
    assert "no case in common" in capsys.readouterr().err
    assert cli.main(["compare", str(results / "old"), str(tmp_path / "nothing")]) == 2
    with pytest.raises(ArgumentError, match="write 5%"):
        parse_percentage("-1%")


def test_a_misspelt_contender_is_named(capsys, results):
    words = [str(results / "old"), str(results / "same"), "--contender", "rnig"]
    assert cli.main(["compare", *words]) == 2
    assert "no contender rnig; there are builtin, ring" in capsys.readouterr().err
