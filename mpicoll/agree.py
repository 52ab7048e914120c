"""Agreement between ranks about a call, and news of a call that failed on one rank only.

A rank that refuses a call while the others run it would leave them waiting for ever. So before the
first message of a new kind of call, all ranks compare what they were asked to do (`Agreement.settle`).
Calls of a kind that was settled before skip that; if then a single rank refuses its arguments, it sends
every other rank a *notice*. The others look for notices whenever a wait takes long, and one that says that
the very call they are in was refused makes them give up with an error that carries the reason. Calls are
counted, and a notice carries its call's number: one that comes early, while its receiver is still busy with
the call before, waits.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Hashable

import numpy as np
from mpi4py import MPI

from .errors import ArgumentError, MismatchError, RevokedError, Unsupported


class Agreement:
    """Settles calls on one private communicator."""

    def __init__(
        self, comm: MPI.Intracomm, notice_tag: int, polite: bool, serve: Callable[[], object]
    ) -> None:
        self.comm, self.tag, self.polite = comm, notice_tag, polite
        self.serve = serve  # called while waiting for the others, who may wait for something begun before
        self.settled: set[Hashable] = set()
        self.revoked: str | None = None
        self.calls = 0  # begun on this communicator; equal on all ranks at the same call
        self._early: list[tuple[int, int, str, bool]] = []
        self._outbox: list[MPI.Request] = []

    @property
    def troubled(self) -> bool:
        """Whether `check` has anything to look at."""
        return self.revoked is not None or bool(self._early)

    def begin(self) -> None:
        """Count a call; raise `RevokedError` if the communicator was given up."""
        self.calls += 1
        self.check()

    def check(self) -> None:
        """Raise `RevokedError` if the communicator was given up."""
        if self.revoked is None:
            for number, rank, text, given_up in self._early:
                if given_up and number < self.calls:
                    self.revoked = f"rank {rank}: {text}"
        if self.revoked is not None:
            raise RevokedError(f"this communicator was given up: {self.revoked}")

    def settle(self, call: Hashable, error: Exception | None = None) -> None:
        """Compare `call` with the other ranks', or tell them the `error` that it met. Collective.

        On every rank alike: returns if all ranks make the same call without an error; otherwise raises
        the error of the lowest rank that has one, or `MismatchError`.
        """
        if self.comm.size == 1:
            if error is not None:
                raise error
            self.settled.add(call)
            return
        if error is not None:
            self._notify(str(error))
        digest = hashlib.blake2b(repr(call).encode(), digest_size=7).digest()
        number = int.from_bytes(digest, "little")
        mine = np.array([number, -number, error is not None], np.int64)
        worst = np.empty_like(mine)
        try:
            self._finish(self.comm.Iallreduce(mine, worst, MPI.MAX))
        except RevokedError as revoked:
            raise error or revoked from revoked
        if worst[0] == -worst[1] and not worst[2]:
            self.settled.add(call)
            return
        self._raise_for_all(call, error)

    def _raise_for_all(self, call: Hashable, error: Exception | None) -> None:
        kind = type(error).__name__ if error is not None else ""
        reports = self.comm.allgather((kind, str(error) if error else repr(call)))
        failed = [rank for rank, (name, _) in enumerate(reports) if name]
        came_early = {rank for number, rank, _, given_up in self._early if not given_up}
        self._early = [notice for notice in self._early if notice[3]]
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

    def _finish(self, request: MPI.Request) -> None:
        """Wait, with an open ear for notices that this rank's call is no longer wanted."""
        self._outbox.append(request)  # if it is given up, its memory must stay
        tests = 0
        while not request.Test():
            tests += 1
            if self.polite or tests % 64 == 0:
                os.sched_yield()
            if tests % 64 == 0:
                self.serve()
            if tests % 1024 == 0:
                self._receive(given_up=True)
                self._heed(given_up_only=True)
        self._outbox.remove(request)

    def listen(self) -> None:
        """Called in long waits inside a collective: give up if another rank refused this call."""
        self._receive(given_up=False)
        self._receive(given_up=True)
        self._heed(given_up_only=False)

    def _receive(self, *, given_up: bool) -> None:
        """Take in the notices that have come."""
        tag = self.tag - 1 if given_up else self.tag
        while self.comm.Iprobe(source=MPI.ANY_SOURCE, tag=tag):
            number, rank, text = self.comm.recv(source=MPI.ANY_SOURCE, tag=tag)
            self._early.append((number, rank, text, given_up))

    def _heed(self, *, given_up_only: bool) -> None:
        """Give up if a notice is about the call that this rank is in (or one that it thought over)."""
        for number, rank, text, given_up in self._early:
            if number <= self.calls and (given_up or not given_up_only):
                why = text if given_up else f"rank {rank} refused a call that others had begun: {text}"
                self.revoke(why, tell=not given_up)
                self.check()

    def refuse(self, error: Exception) -> None:
        """Tell the others that this rank refuses a nonblocking call; they find out when they wait."""
        self._notify(str(error))
        self.revoked = f"rank {self.comm.rank} refused a nonblocking call: {error}"

    def revoke(self, why: str, *, tell: bool = True) -> None:
        """Give the communicator up, and tell the others."""
        if self.revoked is None:
            self.revoked = why
            if tell:
                self._notify(why, self.tag - 1)

    def _notify(self, text: str, tag: int | None = None) -> None:
        notice = self.calls, self.comm.rank, text
        for rank in range(self.comm.size):
            if rank != self.comm.rank:
                self._outbox.append(self.comm.isend(notice, rank, tag or self.tag))

    def forget(self) -> None:
        """Let go of notices that were read; those that were not must keep their memory."""
        self._outbox = [request for request in self._outbox if not request.Test()]
        _unread.extend(self._outbox)


_unread: list[MPI.Request] = []


def _short(ranks: list[int]) -> str:
    text = ", ".join(map(str, ranks[:8]))
    return text if len(ranks) <= 8 else f"{text}, … ({len(ranks)} ranks)"
