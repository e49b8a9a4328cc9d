"""Images of one's own, as Pillow opens them: 8-bit arrays of one size, grey or colour."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from fedoptax.errors import DataError, UsageError

_GREY = ("1", "L", "LA")
_COLOUR = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")


def stack(
    images: Iterable[tuple[str, Callable[[], Any]]],
    count: int,
    image_size: int | tuple[int, int] | None,
    max_bytes: int,
) -> np.ndarray:
    """Decodes images one by one into one array.

    An image is turned upright by its EXIF orientation. If all are grey there is one channel, else there are three: a
    grey one among colour has it three times, transparency is dropped, palettes are looked up.

    Args:
      images: the name of each, for messages, and a function that opens it as a `PIL.Image.Image`.
      count: n, how many there are.
      image_size: the height and width to resize to (bilinear), one number for a square; None if all are of one size.
      max_bytes: the most that the array may take.

    Returns:
      uint8 of shape (n, height, width, 1 or 3).

    Raises:
      DataError: an image cannot be decoded, is too large for Pillow's check of decompression bombs, is not of 8 bits,
        or has another size than the first; or the array is too large.
      UsageError: `image_size` is no size.
    """
    size = _checked_size(image_size)
    array = np.empty((0, 0, 0, 1), np.uint8)
    for place, (name, opened) in enumerate(images):
        pixels = _decode(name, opened, size)
        if place == 0:
            array = _allocate(name, (count, *pixels.shape), max_bytes)
        if pixels.shape[:2] != array.shape[1:3]:
            raise DataError(
                f"{name}: {pixels.shape[0]}×{pixels.shape[1]} pixels, the first image has "
                f"{array.shape[1]}×{array.shape[2]}; one size for all, or image_size=, is needed"
            )
        if pixels.shape[2] > array.shape[3]:
            colour = _allocate(name, (*array.shape[:3], 3), max_bytes)
            colour[:place] = array[:place]
            array = colour
        array[place] = pixels
    return array


def check_mode(name: str, image: Image.Image) -> None:
    """Refuses images of another kind than 8 bits a channel.

    Raises:
      DataError: the image `name` is one.
    """
    if image.mode not in _GREY + _COLOUR:
        raise DataError(f"{name}: an image of mode {image.mode}; 8 bits a channel, grey or colour, is allowed")


def _allocate(name: str, shape: tuple[int, ...], max_bytes: int) -> np.ndarray:
    size = int(np.prod(shape, dtype=object))
    if size > max_bytes:
        raise DataError(f"{name}: {shape[0]} images like it take {size} bytes; at most {max_bytes} are allowed")
    return np.empty(shape, np.uint8)


def _checked_size(image_size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if image_size is None:
        return None
    size = image_size if isinstance(image_size, tuple) else (image_size, image_size)
    if len(size) != 2 or not all(isinstance(side, int) and 1 <= side <= 10_000 for side in size):
        raise UsageError(f"image_size: {image_size} given; pixels, from 1 to 10000, or (height, width) is allowed")
    return size


def _decode(name: str, opened: Callable[[], Any], size: tuple[int, int] | None) -> np.ndarray:
    """One image, uint8 (height, width, 1 or 3)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = opened()
            if not isinstance(image, Image.Image):
                raise DataError(f"{name}: {type(image).__name__} given; an image as Pillow opens it is allowed")
            check_mode(name, image)
            upright = ImageOps.exif_transpose(image).convert("L" if image.mode in _GREY else "RGB")
        if size is not None:
            upright = upright.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders fail in many ways
        raise DataError(f"{name}: cannot be read as an image: {' '.join(str(error).split())}") from None
    pixels = np.asarray(upright)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]
