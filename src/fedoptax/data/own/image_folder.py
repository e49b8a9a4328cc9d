"""One's own images in folders: `root/<client>/<class>/*.png`, or the same below `root/train` and `root/test`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from fedoptax.data.own.columns import names, short
from fedoptax.data.own.images import check_mode, stack
from fedoptax.data.own.source import MAX_BYTES, Examples, build
from fedoptax.data.sources import Source
from fedoptax.errors import DataError

_FORMATS = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".bmp": "BMP",
    ".gif": "GIF",
    ".webp": "WEBP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".pgm": "PPM",
    ".ppm": "PPM",
}


def load(root: str | Path, *, image_size: int | tuple[int, int] | None = None, max_bytes: int = MAX_BYTES) -> Source:
    """Reads images in a folder a client, and in it a folder a class; in the order of the sorted names.

    A root that holds a folder `train`, and no other but perhaps `test`, has clients below these. Hidden files and
    files that are no images by their ending are passed over; of an animation the first frame is taken.

    Args:
      root: the folder.
      image_size: the height and width to resize to, one number for a square; None if all are of one size.
      max_bytes: the most that the images may take in memory.

    Returns:
      x uint8 of shape (n, height, width, 1 or 3); see `fedoptax.data.own.images.stack`.

    Raises:
      DataError: no images, one in another place, a broken one, sizes that differ, or a link that leaves the folder.
      UsageError: `image_size` is no size.
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"{root}: not a folder")
    try:
        top = {entry.name for entry in _entries(root, root) if entry.is_dir()}
        is_split = "train" in top and top <= {"train", "test"}
        train = list(_files(root / "train" if is_split else root, root))
        test = list(_files(root / "test", root)) if is_split and "test" in top else []
    except OSError as error:
        raise DataError(f"{root}: cannot be read: {error.strerror or error}") from None
    if not train:
        raise DataError(f"{root}: holds no images to train on at client/class/image ({', '.join(_FORMATS)})")
    found = [*train, *test]
    x = stack([(str(file.path), file.read) for file in found], len(found), image_size, max_bytes)
    first, rest = x[: len(train)], x[len(train) :]
    return build(str(root), _examples(root, train, first), _examples(root, test, rest) if test else None)


class _File(NamedTuple):
    """An image, and what its place says of it."""

    path: Path
    client: str
    label: str

    def read(self) -> Image.Image:
        with Image.open(self.path, formats=[_FORMATS[self.path.suffix.lower()]]) as image:
            check_mode(str(self.path), image)  # before its pixels take memory
            image.load()
            return image


def _examples(root: Path, files: list[_File], x: np.ndarray) -> Examples:
    labels = names(f"{root}: classes", [file.label for file in files])
    return Examples(x, labels, names(f"{root}: clients", [file.client for file in files]))


def _files(folder: Path, root: Path) -> Iterator[_File]:
    for client in _folders(folder, root):
        for label in _folders(client, root):
            for entry in _entries(label, root):
                if entry.is_dir():
                    raise DataError(f"{entry}: a folder in place of an image; client/class/image is allowed")
                if entry.suffix.lower() in _FORMATS:
                    yield _File(entry, client.name, label.name)


def _folders(folder: Path, root: Path) -> Iterator[Path]:
    for entry in _entries(folder, root):
        if entry.is_dir():
            yield entry
        elif entry.suffix.lower() in _FORMATS:
            raise DataError(f"{entry}: an image in place of a folder; client/class/image is allowed")


def _entries(folder: Path, root: Path) -> list[Path]:
    """What a folder holds, sorted, without hidden entries; refuses links that lead out of `root`."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    for entry in entries:
        if not entry.name.isprintable():
            raise DataError(f"{folder}: a file named {short(entry.name)}; printable names are allowed")
        if entry.is_symlink() and not _leads_inside(entry, root):
            raise DataError(f"{entry}: a link that leaves {root}, or leads nowhere; links inside it are allowed")
    return entries


def _leads_inside(link: Path, root: Path) -> bool:
    try:
        return link.resolve(strict=True).is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # broken, or a loop
        return False
