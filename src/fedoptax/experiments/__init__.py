"""Runs, comparisons, sweeps and searches, and their parts."""
