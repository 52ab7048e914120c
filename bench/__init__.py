"""The measuring half of mpicoll: sweeps, reports and the `mpicoll` command (imported as mpicoll.bench)."""
