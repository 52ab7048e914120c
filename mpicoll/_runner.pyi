"""Types of the native engine (`_runner.c`)."""

from collections.abc import Callable
from typing import Any

def kernel(name: str) -> int | None: ...
def stop_background() -> None: ...
def background_policy(spins: int, longest_sleep_ns: int) -> None: ...

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
        idle: Callable[[int, bool], bool],
        failure: Callable[[int, int], Exception | None],
        owner: object,
        polite: bool,
    ) -> None: ...
    def __call__(self) -> None: ...
    def advance(self, blocking: bool, /) -> bool: ...
    def retire(self) -> None: ...
    def submit(self, after: Program | None, /) -> None: ...
    def test(self) -> bool: ...
    def join(self) -> None: ...
    @property
    def position(self) -> int: ...
