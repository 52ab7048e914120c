"""What few launches can and cannot decide: tests, corrections, margins; false verdicts and missed ones."""

import math

import numpy as np
import pandas as pd
import pytest

from mpicoll.bench.intervals import bootstrap, intervals_of_medians, median_interval
from mpicoll.bench.stats import PANEL, summarise
from mpicoll.bench.verdicts import Evidence, decide, launches_needed, leaning, paired, unpaired
from synthetic import row


def evidence(ratios, error=0.0, hull=(math.nan, math.nan)):
    return paired(ratios, [error] * len(ratios), hull)


def verdicts(*found, **options):
    frame = decide(found, [0] * len(found), **options)
    return list(frame["verdict"])


def test_the_interval_of_a_median_assumes_nothing_and_needs_six():
    assert np.isnan(median_interval(np.arange(5.0))).all()
    assert median_interval(np.arange(101.0)) == (40.0, 60.0)
    rng = np.random.default_rng(0)
    draws = (median_interval(rng.exponential(size=25)) for _ in range(400))
    assert sum(low <= math.log(2) <= high for low, high in draws) >= 0.93 * 400


def test_many_intervals_at_once_are_those_one_by_one():
    rng = np.random.default_rng(1)
    groups = [rng.exponential(size=n) for n in (7, 5, 7, 1)]
    lows, highs = intervals_of_medians(groups)
    for group, low, high in zip(groups[:3], lows, highs, strict=False):
        assert group.min() <= low < np.median(group) < high <= group.max()
    assert bootstrap((groups[1],), np.median) == (groups[1].min(), groups[1].max()) == (lows[1], highs[1])
    assert np.isnan([lows[3], highs[3]]).all()


def test_fewer_than_five_launches_decide_nothing_but_lean():
    found = decide([evidence([0.5] * 4, hull=(0.49, 0.52))], ["x"]).iloc[0]
    assert (found["verdict"], found["leaning"]) == ("undecided", "faster")
    assert found["why"] == "4 launches: a verdict needs 5"
    assert math.isnan(found["p_holm"])


def test_five_launches_decide_what_is_plain():
    assert verdicts(evidence([0.49, 0.5, 0.51, 0.5, 0.52])) == ["faster"]
    assert verdicts(evidence([2.1, 2.0, 2.2, 2.0, 1.9])) == ["slower"]


def test_one_launch_that_disagrees_leaves_five_undecided():
    found = decide([evidence([0.5, 0.5, 0.5, 0.5, 1.2])], [0]).iloc[0]
    assert found["verdict"] == "undecided"
    assert "holds 1" in found["why"]
    assert found["launch_scatter"] == pytest.approx(2.4)


def test_the_test_on_ranks_is_used_where_it_can_be_significant():
    """With n launches its least p is 2 ** (1 - n), and m comparisons multiply that."""
    for launches, comparisons, name in ((5, 1, "t"), (6, 1, "ranks"), (9, 13, "t"), (10, 13, "ranks")):
        rng = np.random.default_rng(0)
        several = [evidence(np.exp(rng.normal(-0.5, 0.1, launches))) for _ in range(comparisons)]
        assert set(decide(several, [0] * comparisons)["test"]) == {name}
    assert (launches_needed(1), launches_needed(13)) == (6, 10)


def test_a_difference_within_the_margin_is_a_tie_however_sure():
    tight = evidence([0.97, 0.971, 0.972, 0.969, 0.97, 0.97, 0.971, 0.968])
    assert verdicts(tight) == ["tie"]
    assert verdicts(tight, margin=0.01) == ["faster"]
    assert leaning(0.9, 1.2) is None


def test_comparisons_are_corrected_within_their_family():
    """What is found alone is lost among forty."""
    one = evidence([0.90, 0.80, 0.93, 0.85, 0.78])
    noise = [evidence(np.exp(np.random.default_rng(k).normal(0, 0.1, 5))) for k in range(39)]
    assert decide([one, *noise], ["a", *["b"] * 39])["verdict"].iloc[0] == "faster"
    found = decide([one, *noise], ["a"] * 40).iloc[0]
    assert (found["verdict"], found["leaning"]) == ("undecided", "faster")
    assert "after correction for 40 comparisons" in found["why"]


def test_launches_that_agree_better_than_they_were_timed_prove_nothing():
    assert verdicts(evidence([0.9, 0.9, 0.9, 0.9, 0.9], error=0.002)) == ["faster"]
    assert verdicts(evidence([0.9, 0.9, 0.9, 0.9, 0.9], error=0.2)) == ["undecided"]


def test_launches_of_two_sides_are_not_paired():
    rng = np.random.default_rng(2)

    def launches(number, seconds):
        return [seconds * np.exp(rng.normal(0, 0.02) + rng.normal(0, 0.05, 30)) for _ in range(number)]

    old = launches(6, 1e-5)
    assert verdicts(unpaired(launches(5, 1.3e-5), old)) == ["slower"]
    assert verdicts(unpaired(launches(30, 1e-5), launches(30, 1e-5))) == ["tie"]
    few = unpaired(launches(2, 1.3e-5), old)
    assert few.hull[0] < few.ratio < few.hull[1]
    assert verdicts(few) == ["undecided"]
    assert isinstance(few, Evidence)


def sweep(rng, cells, launches, factors, iterations=10):
    """Samples of contenders that differ by `factors`: every launch shifts each by 1 %, every call by 3 %."""
    shape = (len(factors), cells, launches, iterations)
    common = rng.normal(0, 0.2, (1, *shape[1:3], 1)) + rng.normal(
        0, 0.1, (1, *shape[1:])
    )  # strikes all alike
    own = rng.normal(0, 0.01, (*shape[:3], 1)) + rng.normal(0, 0.03, shape)
    spikes = np.where(rng.random(shape) < 0.03, 5.0, 1.0)
    seconds = 1e-5 * np.array(list(factors.values())).reshape(-1, 1, 1, 1) * np.exp(common + own) * spikes
    who, cell, launch, iteration = (axis.ravel() for axis in np.indices(shape))
    fixed = {name: value for name, value in row().items() if name not in ("requested", "algorithm")}
    missing = dict.fromkeys(("engine", "params", "channels", "depth", "rounds", "reason"))
    constant = {"source": "s", "settings": "", "environment": "e", "placement": "bound", "size": "s",
                "memory": "host", "late": False, "batch": 1, "pass": 0}  # fmt: skip
    names = np.array(list(factors))[who]
    where = {
        "case": cell,
        "count": cell + 1,
        "msg_bytes": 4 * cell + 4,
        "launch": launch,
        "iteration": iteration,
    }
    times = {"contender": names, "requested": names, "algorithm": names, "seconds": seconds.ravel()}
    return pd.DataFrame({**fixed, **missing, **constant, **where, **times})


def test_equal_contenders_are_never_found_different_and_a_tenth_is_found():
    """200 cells of builtin against builtin, and among 20 others one that is a tenth slower."""
    rng = np.random.default_rng(7)
    equal = summarise(sweep(rng, 200, 5, {"builtin": 1.0, "again": 1.0}))
    said = equal.loc[equal["contender"] == "again", "verdict"].value_counts().to_dict()
    assert sum(said.values()) == 200
    assert said.get("faster", 0) + said.get("slower", 0) <= 0.05 * 200
    assert said["tie"] >= 100  # and it does say something
    planted = summarise(sweep(rng, 20, 8, {"builtin": 1.0, "again": 1.0, "slow": 1.1}))
    found = planted.groupby("contender")["verdict"].value_counts()
    assert found["slow", "slower"] >= 18
    assert found["again"].get("slower", 0) == found["again"].get("faster", 0) == 0
    assert set(PANEL) <= set(planted)


def test_a_small_p_decides_nothing_against_the_interval():
    """Seen with five launches: Student's p of 0.04, and a launch in which the builtin was faster."""
    wide, clear = evidence([0.40, 0.50, 0.59, 0.60, 1.11]), evidence([0.50, 0.51, 0.52, 0.53, 0.54])
    said = decide([wide, clear], ["one", "another"])
    assert said["p_holm"].max() < 0.05
    assert list(said["verdict"]) == ["undecided", "faster"]
