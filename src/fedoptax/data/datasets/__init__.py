"""The public data sets: each module reads its publisher's format into a `Source`.

Every `load` takes `data_dir` as `fedoptax.data.files.find_data_dir`, and raises a `DataError` if a file is missing,
damaged or not of its format.
"""
