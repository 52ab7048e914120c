"""Types of the native engine (`_runner.c`)."""

from collections.abc import Callable
from typing import Any

def kernel(name: str) -> int | None: ...

class Program:
    def __init__(
        self,
        *,
        steps: Any,
        requests: bytes,
        request_size: int,
        status_size: int,
        longest_wait: int,
        startall: int,
        testall: int,
        reduce_local: int,
        combine: int,
        datatype: int,
        operation: int,
        idle: Callable[[int], None],
        failure: Callable[[int, int], Exception],
        owner: object,
        polite: bool,
    ) -> None: ...
    def __call__(self) -> None: ...
    def advance(self, blocking: bool, /) -> bool: ...
    @property
    def position(self) -> int: ...
