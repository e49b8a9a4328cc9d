"""`fedoptax predict` and `fedoptax export`: the model of a run on new examples, and for other programs."""

import io
import sys
from typing import Any

from fedoptax._files import pack_arrays, write_atomically
from fedoptax.cli.options import Export, Predict
from fedoptax.errors import check_choice
from fedoptax.storage.model import load_model

ENDINGS = (".csv", ".parquet", ".npz")


def predict(given: Predict) -> None:
    """Predict the examples of a file, and write or print the predictions."""
    if given.out is not None:
        check_choice("--out", given.out.suffix, ENDINGS)
    table = load_model(given.folder, given.params).predict_file(given.input, given.top)
    if given.out is None:
        table.to_csv(sys.stdout, index=False)
        return
    buffer = io.BytesIO()
    if given.out.suffix == ".csv":
        table.to_csv(buffer, index=False)
    elif given.out.suffix == ".parquet":
        table.to_parquet(buffer, index=False)
    else:
        columns = {str(name): column.to_numpy() for name, column in table.items()}
        arrays: Any = {name: a.astype(str) if a.dtype.hasobject else a for name, a in columns.items()}
        buffer.write(pack_arrays(arrays))
    write_atomically(given.out, buffer.getvalue())
    print(f"{len(table)} predictions: {given.out}")


def export(given: Export) -> None:
    """Write the model of a run to a file."""
    print(f"model: {load_model(given.folder, given.params).save(given.out)}")
