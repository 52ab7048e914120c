"""The exceptions of mpicoll.

Every message names what is wrong, with the values, and either the valid choices or the fix.
"""

from __future__ import annotations


class MpicollError(Exception):
    """Base class of every error that mpicoll raises on purpose."""


class Unsupported(MpicollError):
    """An algorithm cannot serve this case (size, operation, layout); the message says why.

    An algorithm never runs another one in its place: a sweep records the row as unsupported.
    """


class ArgumentError(MpicollError, ValueError):
    """A call's arguments are wrong: buffer, count, datatype, operation, root or parameter."""


class ScheduleError(MpicollError):
    """A schedule breaks its rules or its collective's promise; raised by the verifier."""


class MismatchError(MpicollError):
    """Ranks called one collective with different arguments."""


class RevokedError(MpicollError):
    """Another rank refused a call that this rank had begun; the communicator is unusable."""


class TimeoutExpired(MpicollError):
    """A collective made no progress within MPICOLL_TIMEOUT seconds; names round and peers."""


class VerificationFailed(MpicollError):
    """A collective delivered wrong data; names rank, element, expected and found value."""
