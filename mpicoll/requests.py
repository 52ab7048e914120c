"""Nonblocking collectives: requests, and the order in which they run.

A nonblocking call takes the next of a few *lanes*, in turn. Calls in one lane run one after the other, so
that they can share tags; calls in different lanes run side by side. All ranks make their calls in the same
order, so they agree on lanes without a word.

Progress: at MPI_THREAD_MULTIPLE the native engine's background thread completes calls while Python
computes. Otherwise a call advances whenever any request is tested or waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from .memory import leave_to_mpi
from .runner import Plan

try:
    from . import _runner
except ImportError:  # then there is only the python engine, and no thread
    _thread: Any = None
else:
    _thread = _runner

LANES = 8
_open: list[Request] = []  # begun and not over, oldest first


@contextmanager
def background_held() -> Iterator[None]:
    """Within: the background thread stays out of MPI."""
    if _thread is not None:
        _thread.hold()
    try:
        yield
    finally:
        if _thread is not None:
            _thread.release()


class Request:
    """A nonblocking collective under way. `Wait` for it, or `Test` until True.

    It keeps the user's buffers alive until it is over, and for ever if it failed.
    """

    def __init__(self, plan: Plan, previous: Request | None, owners: object) -> None:
        self.plan = plan
        plan.users += 1
        self.over: bool = False
        self._owners = owners
        self._previous = previous if previous is not None and not previous.over else None
        self._begun = self._waited_for = False
        self._error: BaseException | None = None
        self._looked = time.monotonic()
        _open.append(self)
        self._advance()

    def _begin(self) -> None:
        """Start, if the call before it in the lane allows it."""
        previous = self._previous
        chained = previous is not None and previous._begun and previous.plan.background
        if previous is not None and not (self.plan.background and chained):
            if not previous._advance():
                return
            previous = None
        self._begun = True
        self.plan.start_after(previous.plan if previous is not None else None)

    def _advance(self) -> bool:
        """Do what can be done without waiting. What goes wrong is for the request's owner to hear."""
        if not self.over and not self._waited_for:
            try:
                if not self._begun:
                    self._begin()
                if self._begun and self.plan.Test():
                    self._finish()
            except Exception as error:
                self._error = error
                self._finish()
        return self.over

    def _finish(self) -> None:
        self.over = True
        self.plan.users -= 1
        if self._error is not None:
            leave_to_mpi(self._owners)
        self._previous = self._owners = None
        _open.remove(self)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def Test(self) -> bool:
        """Whether the operation is complete. Advances all open requests."""
        self.advance_open()
        if not self.over and time.monotonic() - self._looked > 0.02:
            self._looked = time.monotonic()
            self.plan.listen()
        self._raise()
        return self.over

    def Wait(self) -> bool:
        """Complete the operation."""
        before = []  # those of its lane that come first, newest first
        request: Request | None = self
        while request is not None and not request.over:
            before.append(request)
            request = request._previous
        for request in reversed(before):
            request._complete()
        self._raise()
        return True

    def _complete(self) -> None:
        if self.over:
            return
        self._waited_for = True  # so that the wait, which serves all open requests, leaves this one alone
        try:
            if not self._begun:
                self._begin()
            self.plan.Wait()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._finish()

    test, wait = Test, Wait

    @staticmethod
    def Waitall(requests: Iterable[Request]) -> bool:
        """Complete all of them."""
        for request in requests:
            request.Wait()
        return True

    @staticmethod
    def Testall(requests: Iterable[Request]) -> bool:
        """Whether all are complete."""
        return all([request.Test() for request in requests])

    @staticmethod
    def advance_open() -> bool:
        """Advance all open requests and started plans of this process; whether there are any.

        A rank that waits in one collective must go on serving those that it began before.
        """
        for request in list(_open):
            request._advance()
        return Plan.serve_started() or bool(_open)

    def __repr__(self) -> str:
        """What it is and where it stands."""
        return f"<{type(self).__name__}: {self.plan.describe()}{', complete' if self.over else ''}>"
