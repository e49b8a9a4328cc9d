"""Federated data: sources and partitions."""
