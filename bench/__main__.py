"""``python -m mpicoll.bench``: the command `mpicoll`."""

import sys

from mpicoll.__main__ import run

sys.exit(run())
