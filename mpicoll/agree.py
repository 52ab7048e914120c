"""Agreement between ranks about a call, and news of a call that failed on one rank only.

A rank that refuses a call while the others run it would leave them waiting for ever. So before the
first message of a new kind of call, all ranks compare what they were asked to do (`Agreement.settle`).
Calls of a kind that was settled before skip that; if then a single rank refuses its arguments, it sends
every other rank a *notice*. The others look for notices whenever a wait takes long, and one that says that
the very call they are in was refused makes them give up with an error that carries the reason. Calls are
counted, and a notice carries its call's number: one that comes early, while its receiver is still busy with
the call before, waits. A rank that waits long for the others to compare calls sends a *doubt*, which is
heeded by one that runs the call of that number without having compared it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Hashable
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from .errors import ArgumentError, MismatchError, RevokedError, TimeoutExpired, Unsupported

REFUSED, GAVE_UP, DOUBT = range(3)  # kinds of notices
MOST_SETTLED = 4096  # kinds of calls remembered; all ranks forget the same ones, the oldest
PATIENCE = 5.0  # seconds that a refusing rank waits for the others to hear of it
MOST_TEXT = 1000  # characters of a notice, so that it can always be sent at once
SECOND_THOUGHTS = 1.0  # seconds of waiting for the others after which doubts are sent


class Notice(NamedTuple):
    """What one rank tells the others about a call."""

    number: int
    rank: int
    text: str
    kind: int


class Agreement:
    """Settles calls on one private communicator."""

    def __init__(
        self, comm: MPI.Intracomm, notice_tag: int, polite: bool, serve: Callable[[], object]
    ) -> None:
        self.comm, self.tag, self.polite = comm, notice_tag, polite
        self.serve = serve  # called while waiting for the others, who may wait for something begun before
        self.timeout: float | None = None
        self.settled: dict[Hashable, None] = {}
        self.revoked: str | None = None
        self.calls = 0  # begun on this communicator; equal on all ranks at the same call
        self._compared = 0  # the last call that was compared with the others'
        self.notices: list[Notice] = []
        self._outbox: list[MPI.Request] = []

    def begin(self) -> None:
        """Count a call; raise `RevokedError` if the communicator was given up."""
        self.calls += 1
        tell_last_words()
        self.notices = [n for n in self.notices if n.kind != DOUBT or n.number >= self.calls]
        self.check()

    def check(self) -> None:
        """Raise `RevokedError` if the communicator was given up."""
        if self.revoked is None:
            for notice in self.notices:
                if notice.kind == GAVE_UP and notice.number < self.calls:
                    self.revoked = notice.text
        if self.revoked is not None:
            raise RevokedError(f"this communicator was given up: {self.revoked}")

    def settle(self, call: Hashable, error: Exception | None = None) -> None:
        """Compare `call` with the other ranks', or tell them the `error` that it met. Collective.

        On every rank alike: returns if all ranks make the same call without an error; otherwise raises
        the error of the lowest rank that has one, or `MismatchError`.
        """
        self._compared = self.calls
        if self.comm.size == 1:
            if error is not None:
                raise error
            self._remember(call)
            return
        if error is not None:
            self._notify(str(error), REFUSED)
        digest = hashlib.blake2b(repr(call).encode(), digest_size=7).digest()
        number = int.from_bytes(digest, "little")
        mine = np.array([number, -number, error is not None], np.int64)
        worst = np.empty_like(mine)
        try:
            self._finish(self.comm.Iallreduce(mine, worst, MPI.MAX), call, error)
        except RevokedError as revoked:
            raise error or revoked from revoked
        if worst[0] == -worst[1] and not worst[2]:
            self._remember(call)
            return
        self._raise_for_all(call, error)

    def _remember(self, call: Hashable) -> None:
        self.settled[call] = None
        if len(self.settled) > MOST_SETTLED:
            del self.settled[next(iter(self.settled))]

    def _raise_for_all(self, call: Hashable, error: Exception | None) -> None:
        kind = type(error).__name__ if error is not None else ""
        reports = self.comm.allgather((kind, str(error) if error else repr(call)))
        failed = [rank for rank, (name, _) in enumerate(reports) if name]
        came_early = {n.rank for n in self.notices if n.kind == REFUSED and n.number == self.calls}
        self.notices = [n for n in self.notices if n.kind == GAVE_UP]
        for rank in failed:
            if rank != self.comm.rank and rank not in came_early:
                self.comm.recv(source=rank, tag=self.tag)
        MPI.Request.waitall(self._outbox)
        self._outbox.clear()
        if error is not None:
            raise error
        if failed:
            name, text = reports[failed[0]]
            error_class = {"Unsupported": Unsupported}.get(name, ArgumentError)
            raise error_class(f"rank {failed[0]} refused the call: {text}")
        groups: dict[str, list[int]] = {}
        for rank, (_, text) in enumerate(reports):
            groups.setdefault(text, []).append(rank)
        parts = "; ".join(f"rank{'s' * (len(r) > 1)} {_short(r)}: {text}" for text, r in groups.items())
        raise MismatchError(f"ranks made different calls: {parts}")

    def _finish(self, request: MPI.Request, call: Hashable, error: Exception | None) -> None:
        """Wait, with an open ear for notices that this rank's call is no longer wanted."""
        self._outbox.append(request)  # if it is given up, its memory must stay
        tests, began, doubted = 0, time.monotonic(), False
        while not request.Test():
            tests += 1
            if self.polite or tests % 64 == 0:
                os.sched_yield()
            if tests % 64 == 0:
                self.serve()
            if tests % 1024:
                continue
            self._receive()
            self._heed(GAVE_UP)
            waited = time.monotonic() - began
            if waited > SECOND_THOUGHTS and not doubted:
                doubted = True
                self._notify(f"{call!r}", DOUBT)
            if error is not None and waited > PATIENCE:
                self.revoke(f"rank {self.comm.rank} refused a call: {error}")
                self.check()
            if self.timeout is not None and waited > self.timeout:
                text = f"rank {self.comm.rank} waited {self.timeout:g} s for others to make the call {call!r}"
                self.revoke(text)
                raise TimeoutExpired(text)
        self._outbox.remove(request)

    def listen(self) -> None:
        """Called in long waits inside a collective: give up if another rank refused this call."""
        self._receive()
        self._heed(REFUSED, GAVE_UP, DOUBT)

    def _receive(self) -> None:
        """Take in the notices that have come.

        Refusals of a call that is being compared stay where they are: `_raise_for_all` expects them.
        """
        tell_last_words()
        for tag in (self.tag,) * (self._compared != self.calls) + (self.tag - 1,):
            while self.comm.Iprobe(source=MPI.ANY_SOURCE, tag=tag):
                self.notices.append(Notice(*self.comm.recv(source=MPI.ANY_SOURCE, tag=tag)))

    def _heed(self, *kinds: int) -> None:
        """Give up if a notice is about the call that this rank is in (or one that it thought over)."""
        for notice in self.notices:
            number, rank, text, kind = notice
            if kind not in kinds or number > self.calls:
                continue
            if kind == GAVE_UP:
                self.revoke(text, tell=False)
            elif kind == REFUSED:
                self.revoke(f"rank {rank} refused a call that others had begun: {text}")
            elif number == self.calls and self._compared != self.calls:
                self.revoke(f"rank {rank} makes another call than others: {text}")
            else:
                continue
            self.check()

    def refuse(self, error: Exception) -> None:
        """Tell the others that this rank refuses a nonblocking call; they find out when they wait."""
        self.revoke(f"rank {self.comm.rank} refused a nonblocking call: {error}")

    def revoke(self, why: str, *, tell: bool = True) -> None:
        """Give the communicator up, and tell the others."""
        if self.revoked is None:
            self.revoked = why
            if tell:
                self._notify(why, GAVE_UP)

    def _notify(self, text: str, kind: int) -> None:
        """Refusals travel apart from the rest: those that a comparison accounts for are received by it."""
        tag = self.tag if kind == REFUSED else self.tag - 1
        notice = tuple(Notice(self.calls, self.comm.rank, text[:MOST_TEXT], kind))
        for rank in range(self.comm.size):
            if rank != self.comm.rank:
                self._outbox.append(self.comm.isend(notice, rank, tag))

    def forget(self) -> None:
        """Let go of notices that were read; those that were not must keep their memory."""
        self._outbox = [request for request in self._outbox if not request.Test()]
        _unread.extend(self._outbox)


_unread: list[MPI.Request] = []
_last_words: list[tuple[Agreement, str]] = []


def leave_last_words(agreement: Agreement, why: str) -> None:
    """Give a communicator up from within a finalizer, which runs in whatever thread collects garbage.

    Below MPI_THREAD_MULTIPLE another thread may be inside MPI then; so the other ranks are told when this
    one next makes a new call of mpicoll, waits long in one, or ends (`tell_last_words`).
    """
    _last_words.append((agreement, why))
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        tell_last_words()


def tell_last_words() -> None:
    """Tell the others what finalizers have left to be told; where MPI may be called."""
    while _last_words:
        try:
            agreement, why = _last_words.pop()
        except IndexError:  # a finalizer, or another thread, has told it in between
            return
        agreement.revoke(why)


def _short(ranks: list[int]) -> str:
    text = ", ".join(map(str, ranks[:8]))
    return text if len(ranks) <= 8 else f"{text}, … ({len(ranks)} ranks)"
