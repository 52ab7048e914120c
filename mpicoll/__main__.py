"""``python -m mpicoll``: the same as the command `mpicoll`."""

import sys

from mpicoll.bench.cli import main

sys.exit(main())
