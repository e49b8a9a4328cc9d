"""The faults of `benchmarks/faults.py`, a module a kind."""
