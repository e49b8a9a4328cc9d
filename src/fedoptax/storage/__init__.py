"""Run folders: configuration, history, checkpoints, results."""
