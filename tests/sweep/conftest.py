"""Data of the tests in here is not collected: importing it would register wrong algorithms for all others."""

collect_ignore = ["planted.py"]
