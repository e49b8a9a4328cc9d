"""One's own data, one format a file: arrays, tables, folders of images, and data sets of other libraries."""

from __future__ import annotations

from pathlib import Path

from fedoptax.data.own.split import holdout
from fedoptax.data.sources import Source
from fedoptax.errors import DataError, UsageError

__all__ = ["holdout", "load_file"]

_FORMATS = ".npz, .csv, .tsv, .parquet, or a folder of images (client/class/image)"
_TEST_FRACTION = 0.2


def load_file(
    path: str | Path,
    *,
    client: str | None = None,
    label: str | None = None,
    test_fraction: float | None = None,
    image_size: int | tuple[int, int] | None = None,
    seed: int = 0,
) -> Source:
    """Reads a file or folder of one's own, whose format its name tells.

    Args:
      path: `.npz` (see `fedoptax.data.own.npz`), `.csv`, `.tsv` or `.parquet` (`table`), or a folder (`image_folder`).
      client: the array or column of the client ids; None takes `client` if it is there, else there are no clients.
      label: the array or column of the labels; None takes `y` of an archive, `label` of a table.
      test_fraction: of every client's examples, to hold out if there is no test part; 0 for none, None for 0.2.
      image_size: the height and width to resize images of a folder to; None if all are of one size.
      seed: of the choice of what is held out.

    Raises:
      UsageError: another format, or an option that does not apply to it.
      DataError: the file is missing or broken; see the reader of the format.
    """
    path = Path(path)
    if test_fraction is not None and not 0.0 <= test_fraction < 1.0:
        raise UsageError(f"test_fraction: {test_fraction} given; from 0 to less than 1 is allowed")
    source = _load(path, client, label, image_size)
    if len(source.test["y"]):
        if test_fraction:
            raise UsageError(f"test_fraction: {test_fraction} given, but '{path}' has test examples of its own")
        return source
    fraction = _TEST_FRACTION if test_fraction is None else test_fraction
    return holdout(source, fraction, seed) if fraction else source


def _load(path: Path, client: str | None, label: str | None, image_size: int | tuple[int, int] | None) -> Source:
    """By format; readers are imported when they are needed, as pandas and Pillow take their time."""
    suffix = path.suffix.lower()
    if path.is_dir():
        for name, value in (("client", client), ("label", label)):
            if value is not None:
                raise UsageError(f"{name}: '{value}' given; in a folder of images the names of the folders tell it")
        from fedoptax.data.own import image_folder

        return image_folder.load(path, image_size=image_size)
    if not path.exists():
        raise DataError(f"{path}: not found; allowed is {_FORMATS}")
    if image_size is not None:
        raise UsageError(f"image_size: {image_size} given; it applies to a folder of images")
    if suffix == ".npz":
        from fedoptax.data.own import npz

        return npz.load(path, y=label or "y", client=client)
    if suffix in (".csv", ".tsv", ".parquet"):
        from fedoptax.data.own import table

        return table.load(path, label=label or "label", client=client)
    raise UsageError(f"path: '{path}' given; allowed is {_FORMATS}")
