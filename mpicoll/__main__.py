"""The command `mpicoll`, and ``python -m mpicoll``."""

from __future__ import annotations

import sys


def run() -> int:
    """Run a command; its exit status. Ctrl-C is a line, however early it comes."""
    try:
        from mpicoll.bench.cli import main

        return main()
    except KeyboardInterrupt as error:
        from mpicoll.bench.world import in_words, is_first

        if is_first():
            print(f"mpicoll: {in_words(error)}", file=sys.stderr, flush=True)
        return 130


if __name__ == "__main__":
    sys.exit(run())
