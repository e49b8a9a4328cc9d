"""`fedoptax predict` and `fedoptax export`: the model of a run on new examples, and for other programs."""

import sys

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

    model = load_model(options.folder, options.params)
    if options.evaluate is not None:
        for name, value in model.evaluate_file(options.input, options.evaluate, options.threshold).items():
            print(f"{name} {value:.4g}")
        return
    table = model.predict_file(options.input, options.top, options.threshold)
    for note in table.attrs.get("notes", ()):
        print(f"note: {note}", file=sys.stderr)
    if options.out is None:
        table.to_csv(sys.stdout, index=False)
        return
    if options.out.suffix == ".csv":
        content = table.to_csv(index=False).encode()
    elif options.out.suffix == ".parquet":
        content = table.to_parquet(index=False)
    else:
        columns = {str(name): column.to_numpy() for name, column in table.items()}
        content = pack_arrays({name: a.astype(str) if a.dtype.hasobject else a for name, a in columns.items()})
    write_atomically(options.out, content)
    print(f"{len(table)} predictions: {options.out}")


def export(options: Export) -> None:
    """Write the model of a run to a file."""
    check_choice("out", options.out.suffix, MODEL_ENDINGS)
    from fedoptax.storage.model import load_model  # imports JAX

    print(f"model: {load_model(options.folder, options.params).save(options.out)}")
