"""The public data sets: each module reads its publisher's format into a `Source`."""
