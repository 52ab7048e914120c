"""The program that starts MPI when it is imported is no module with doctests."""

collect_ignore = ["paired.py"]
