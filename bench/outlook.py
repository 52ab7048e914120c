"""What a campaign will take, and what can come of it: said before anything is launched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mpicoll.bench.campaign import ENOUGH_LAUNCHES, Campaign, Launch
from mpicoll.bench.cases import expand
from mpicoll.bench.sizes import format_seconds
from mpicoll.bench.spec import Spec
from mpicoll.errors import ArgumentError

#: Until ranks measure: the launcher, Python and its modules on each [s]. A guess, for the sum of all.
_START = 2.0


def outlook(campaign: Campaign, launches: Sequence[Launch], specs: Mapping[str, Spec]) -> Iterator[str]:
    """Launches × time, and whether there will be verdicts; `specs` are those of the campaign's options.

    Raises `ArgumentError` for a launch whose sweep would refuse its number of ranks.
    """
    seconds = [_seconds(specs[launch.options], launch) for launch in launches]
    shortest, longest = (format_seconds(one) for one in (min(seconds), max(seconds)))
    each = longest if shortest == longest else f"{shortest} to {longest}"
    count = f"{len(launches)} launch{'es' if len(launches) > 1 else ''}"
    yield (
        f"{count} × about {each} at most = {format_seconds(sum(seconds))} one after the other "
        f"(cases × case-time, or the time limit, and {format_seconds(_START)} to start)"
    )
    if campaign.repeats < ENOUGH_LAUNCHES:
        yield (
            f"{campaign.repeats} repeat{'s give' if campaign.repeats > 1 else ' gives'} no verdicts: "
            f"a verdict needs {ENOUGH_LAUNCHES} launches (repeats = {ENOUGH_LAUNCHES})"
        )


def _seconds(spec: Spec, launch: Launch) -> float:
    """Of one launch."""
    try:
        measuring = len(expand(spec, launch.ranks)) * spec.case_time
    except ArgumentError as error:
        raise ArgumentError(f"the launch of {launch.configuration} would be refused: {error}") from None
    return _START + (measuring if spec.time_limit is None else min(measuring, spec.time_limit))
