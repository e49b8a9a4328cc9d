"""The 1,797 handwritten digits of 8×8 pixels that come with scikit-learn: a data set that needs no download.

Alpaydin and Kaynak, "Optical recognition of handwritten digits", UCI machine learning repository, 1998 (its
test part), as bundled by scikit-learn.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedoptax.data.datasets.source import Source

_SPLIT_SEED = 0  # of the split only: a run's seed must not move examples between train and test


def load(data_dir: str | Path | None = None) -> Source:
    """Read the digits: 80 % of each class to train on (1,438) and 20 % to test on (359), always the same.

    x is uint8 of shape (n, 8, 8, 1) with values 0 … 16 (ink 16), y int32; there are no natural clients. `data_dir` is
    not used; every data set takes it.
    """
    spec = find_spec("sklearn")  # read in place: `import sklearn.datasets` takes seconds
    assert spec is not None  # scikit-learn is required
    path = Path(str(spec.origin)).parent / "datasets" / "data" / "digits.csv.gz"
    rows = np.loadtxt(path, np.uint8, delimiter=",")  # (1797, 65): 64 pixels and the label
    arrays: dict[str, np.ndarray] = {"x": rows[:, :-1].reshape(-1, 8, 8, 1), "y": rows[:, -1].astype(np.int32)}
    rng, is_test = np.random.default_rng(_SPLIT_SEED), np.zeros(len(rows), bool)
    for label in range(10):
        members = rng.permutation(np.flatnonzero(arrays["y"] == label))
        is_test[members[: round(len(members) / 5)]] = True
    train, test = ({name: array[part] for name, array in arrays.items()} for part in (~is_test, is_test))
    return Source(train, test, num_classes=10, input_shape=(8, 8, 1))
