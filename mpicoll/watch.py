"""What a running program can say of itself: its errors, its long waits, its trace."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpi4py import MPI

from .errors import MpicollError, TimeoutExpired
from .program import Message, Program, Start, Wait

GAVE_UP, PLAN_IS_BROKEN, PLAN_IS_BUSY = -1, -2, -3  # as in _runner.h


@dataclass(frozen=True, slots=True)
class Environment:
    """What a communicator gives to all its plans.

    `comm` is private to mpicoll. `polite` makes waits give up the core (more ranks than cores).
    `idle` is called now and then during a long wait; it raises to give up, and returns whether to call it
    again soon. `give_up` tells the other ranks that a run has failed here. `sync_sends` makes every send
    synchronous, and `trace` prints every message.
    """

    comm: MPI.Intracomm
    polite: bool
    idle: Callable[[], bool]
    give_up: Callable[[str], None]
    sync_sends: bool = False
    trace: bool = False
    timeout: float | None = None


class Watch:
    """Knows what a running program waits for: its errors, its long waits, its trace."""

    def __init__(self, program: Program, environment: Environment, name: str, extent: int) -> None:
        self.program, self.environment, self.name = program, environment, name
        self.extent = extent  # bytes of an element
        self.step_of_row: list[int] = []  # native engine: a step may be several rows
        self._since = 0.0

    def describe(self, position: int | None = None) -> str:
        """What runs here, and what its step at `position` is about."""
        program = self.program
        text = f"{self.name} on rank {program.rank} of {program.size}"
        if position is None:
            return text
        number = self._number(position)
        channel, round_ = program.places[number]
        step = program.steps[number]
        text += f", round {round_} of {program.rounds}"
        if channel:
            text += f" of channel {channel}"
        if isinstance(step, Start | Wait):
            messages = program.messages[step.first : step.last]
            peers = sorted({("sends to" if m.sending else "receives from", m.peer) for m in messages})
            text += " (" + ", ".join(f"{verb} {peer}" for verb, peer in peers) + ")"
        return text

    def _number(self, position: int) -> int:
        return self.step_of_row[position] if self.step_of_row else position

    def idle(self, position: int, first: bool) -> bool:
        """Called during long waits: look for news from other ranks, and at the clock."""
        soon = self.environment.idle()
        limit = self.environment.timeout
        now = time.monotonic()
        if first:
            self._since = now
        elif limit is not None and now - self._since > limit:
            raise TimeoutExpired(f"no progress for {limit:g} s: {self.describe(position)}")
        return soon

    def failure(self, code: int, position: int, statuses: Sequence[MPI.Status] = ()) -> Exception | None:
        """The exception for a failure, told to the other ranks; None where Python has raised one already.

        `code` is MPI's, or one of those in `_runner.h`; `statuses` are those of the messages waited for.
        """
        if code == PLAN_IS_BUSY:
            return MpicollError(f"{self.describe()} is running already")
        if code == PLAN_IS_BROKEN:
            return MpicollError(f"{self.describe()} has failed before, or was freed; it cannot run again")
        text = self.describe(position)
        if code != GAVE_UP:
            text += f": {self._faults(code, position, statuses)}"
        self.environment.give_up(f"rank {self.program.rank} gave up: {text}")
        return None if code == GAVE_UP else MpicollError(text)

    def _faults(self, code: int, position: int, statuses: Sequence[MPI.Status]) -> str:
        """What MPI says of a failure, or of each message that has failed."""
        step = self.program.steps[self._number(position)]
        found = []
        if isinstance(step, Wait) and MPI.Get_error_class(code) == MPI.ERR_IN_STATUS:
            messages = self.program.messages[step.first : step.last]
            for message, status in zip(messages, statuses, strict=False):
                kind = MPI.Get_error_class(status.Get_error())
                if kind == MPI.ERR_TRUNCATE and not message.sending:
                    found.append(self._truncated(message, status))
                elif kind not in (MPI.SUCCESS, MPI.ERR_PENDING):
                    verb = "to" if message.sending else "from"
                    says = MPI.Get_error_string(status.Get_error())
                    found.append(f"MPI says of the message {verb} rank {message.peer}: {says!r}")
        return "; ".join(found) or f"MPI says {MPI.Get_error_string(code)!r}"

    def _truncated(self, message: Message, status: MPI.Status) -> str:
        place = message.region.length * self.extent
        # Open MPI counts all of it; MPICH what was kept, and has both in its text (in 5.0 one for the other).
        told = re.search(
            r"(\d+) bytes received but buffer size is (\d+)", MPI.Get_error_string(status.Get_error())
        )
        came = max(status.Get_count(MPI.BYTE), *map(int, told.groups() if told else (0, 0)))
        size = f"has {came} bytes" if came > place else "is longer"
        return (
            f"the message from rank {message.peer} {size}, this rank expects {place}: "
            "the two differ in their counts, or made different calls"
        )

    def trace(self, position: int) -> None:
        """Print one line for each message that a step starts."""
        step = self.program.steps[position]
        assert isinstance(step, Start)
        channel, round_ = self.program.places[position]
        for message in self.program.messages[step.first : step.last]:
            verb = "sends to" if message.sending else "receives from"
            print(
                f"mpicoll: {self.name} rank {self.program.rank} round {round_} channel {channel} "
                f"{verb} {message.peer}: {message.region.length} elements",
                flush=True,
            )
