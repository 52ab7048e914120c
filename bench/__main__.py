"""``python -m mpicoll.bench``: the command `mpicoll`."""

import sys

from mpicoll.bench.cli import main

sys.exit(main())
