"""`fedoptax predict` and `fedoptax export`: the model of a run on new examples, and for other programs."""

import io
import sys
from typing import Any

from fedoptax._files import pack_arrays, write_atomically
from fedoptax.cli.options import Export, Predict
from fedoptax.errors import check_choice

ENDINGS = (".csv", ".parquet", ".npz")
MODEL_ENDINGS = (".npz", ".safetensors", ".stablehlo")


def predict(options: Predict) -> None:
    """Predict the examples of a file, and write or print the predictions."""
    if options.out is not None:
        check_choice("out", options.out.suffix, ENDINGS)
    from fedoptax.storage.model import load_model  # imports JAX

    table = load_model(options.folder, options.params).predict_file(options.input, options.top)
    if options.out is None:
        table.to_csv(sys.stdout, index=False)
        return
    buffer = io.BytesIO()
    if options.out.suffix == ".csv":
        table.to_csv(buffer, index=False)
    elif options.out.suffix == ".parquet":
        table.to_parquet(buffer, index=False)
    else:
        columns = {str(name): column.to_numpy() for name, column in table.items()}
        arrays: Any = {name: a.astype(str) if a.dtype.hasobject else a for name, a in columns.items()}
        buffer.write(pack_arrays(arrays))
    write_atomically(options.out, buffer.getvalue())
    print(f"{len(table)} predictions: {options.out}")


def export(options: Export) -> None:
    """Write the model of a run to a file."""
    check_choice("out", options.out.suffix, MODEL_ENDINGS)
    from fedoptax.storage.model import load_model  # imports JAX

    print(f"model: {load_model(options.folder, options.params).save(options.out)}")
