"""Runs, comparisons, sweeps and searches, and what they are built from."""
