"""`fedoptax predict` and `fedoptax export`: the model of a run on new examples, and for other programs."""

import sys

from fedoptax._files import pack_arrays, write_atomically
from fedoptax.cli.options import ExportForm, PredictForm
from fedoptax.errors import UsageError, check_choice

ENDINGS = (".csv", ".parquet", ".npz")
MODEL_ENDINGS = (".npz", ".safetensors", ".stablehlo")


def predict(options: PredictForm) -> None:
    """Predict the examples of a file, and write or print the predictions; or answer a prompt."""
    if options.prompt is not None and options.input is None:
        if options.out or options.evaluate or options.top != 1 or options.threshold is not None:
            raise UsageError("prompt cannot be used with `out`, `evaluate`, `top` or `threshold`")
        from fedoptax.storage.adapter import load_adapted  # imports JAX

        for piece in load_adapted(options.folder, options.params).answer(options.prompt, options.tokens):
            print(piece, end="", flush=True)
        print()
        return
    if options.input is None or options.prompt is not None:
        raise UsageError("predict needs either `input` or `prompt`")
    if options.evaluate is not None and (options.out is not None or options.top != 1):
        raise UsageError("evaluate prints metrics: it takes neither `out` nor `top`")
    if options.out is not None:
        check_choice("out", options.out.suffix, ENDINGS)
        if options.out.resolve() == options.input.resolve():
            raise UsageError("out must be another file than input")
    from fedoptax.storage.model import load_model  # imports JAX

    model = load_model(options.folder, options.params)
    if options.evaluate is not None:
        for name, value in model.evaluate_file(options.input, options.evaluate, options.threshold).items():
            print(f"{name} {value:.4g}")
        return
    table = model.predict_file(options.input, options.top, options.threshold)
    if options.out is None:
        table.to_csv(sys.stdout, index=False)
        return
    if options.out.suffix != ".csv" and not table.columns.is_unique:
        raise UsageError("out must end in .csv for a table with two columns of one name")
    if options.out.suffix == ".csv":
        content = table.to_csv(index=False).encode()
    elif options.out.suffix == ".parquet":
        content = table.to_parquet(index=False)
    else:
        columns = {str(name): column.to_numpy() for name, column in table.items()}
        content = pack_arrays({name: a.astype(str) if a.dtype.hasobject else a for name, a in columns.items()})
    write_atomically(options.out, content)
    print(f"{len(table)} predictions: {options.out}")


def export(options: ExportForm) -> None:
    """Write the model of a run to a file, or its adapters to a folder."""
    if not options.out.suffix:  # a folder
        from fedoptax.storage.adapter import is_adapted, load_adapted  # imports JAX

        if is_adapted(options.folder):
            print(f"adapter: {load_adapted(options.folder, options.params).save_adapter(options.out)}")
            return
    check_choice("out", options.out.suffix, MODEL_ENDINGS)
    from fedoptax.storage.model import load_model  # imports JAX

    print(f"model: {load_model(options.folder, options.params).save(options.out)}")
