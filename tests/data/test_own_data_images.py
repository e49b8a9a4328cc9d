"""Folders of images: the layout, what is passed over, and images that are refused by name."""

import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from fedoptax.data.own import image_folder
from fedoptax.errors import DataError, UsageError
from own_files import pictures, write_folder


def assert_refused(root, *words, **options):
    with pytest.raises(DataError) as error:
        image_folder.load(root, **options)
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def save(path, image, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(path, **options)
    return path


def grey(value=0, size=(5, 4)):
    return np.full(size, value, np.uint8)


def test_the_folders_tell_client_and_class(tmp_path):
    train = pictures(clients=("ann", "bob"), labels=("cat", "dog"))
    source = image_folder.load(write_folder(tmp_path, train))
    np.testing.assert_array_equal(source.train["x"], train.x)
    np.testing.assert_array_equal(source.train["y"], [0, 0, 1, 1, 0, 0, 1, 1])
    np.testing.assert_array_equal(source.train_groups, np.repeat(["ann", "bob"], 4))
    assert source.train["x"].dtype == np.uint8 and len(source.test["y"]) == 0


def test_train_and_test_share_classes_and_channels(tmp_path):
    save(tmp_path / "train" / "7" / "b" / "1.png", grey(1))
    save(tmp_path / "test" / "10" / "a" / "1.png", np.full((5, 4, 3), 9, np.uint8))
    (tmp_path / "README.txt").write_text("two parts")
    source = image_folder.load(tmp_path)
    assert (source.num_classes, source.input_shape) == (2, (5, 4, 3))
    assert (source.train["y"], source.test["y"]) == ([1], [0])
    assert (source.train_groups, source.test_groups) == ([7], [10])
    np.testing.assert_array_equal(source.train["x"], np.ones((1, 5, 4, 3)))


def test_a_client_may_be_called_train_among_others(tmp_path):
    for client in ("train", "ann"):
        save(tmp_path / client / "a" / "1.png", grey())
    np.testing.assert_array_equal(image_folder.load(tmp_path).train_groups, ["ann", "train"])


def test_hidden_files_and_those_that_are_no_images_are_passed_over(tmp_path):
    save(tmp_path / "a" / "x" / "1.PNG", grey())
    for name in (".git/x/1.png", "a/.cache/1.png", "a/x/.1.png", "a/x/Thumbs.db", "a/notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no image")
    (tmp_path / "b").mkdir()
    assert len(image_folder.load(tmp_path).train["y"]) == 1


@pytest.mark.parametrize(
    ("mode", "channels"), [("1", 1), ("L", 1), ("LA", 1), ("P", 3), ("RGB", 3), ("RGBA", 3), ("CMYK", 3)]
)
def test_modes_become_grey_or_colour(tmp_path, mode, channels):
    white = Image.new("RGB", (4, 5), "white").convert(mode)
    save(tmp_path / "a" / "x" / ("1.tif" if mode == "CMYK" else "1.png"), white)
    source = image_folder.load(tmp_path)
    np.testing.assert_array_equal(source.train["x"], np.full((1, 5, 4, channels), 255))


@pytest.mark.parametrize("suffix", [".jpg", ".bmp", ".gif", ".webp", ".tiff", ".pgm", ".png"])
def test_formats(tmp_path, suffix):
    save(tmp_path / "a" / "x" / f"1{suffix}", grey(255))
    assert image_folder.load(tmp_path).train["x"].min() > 250


def test_an_image_is_turned_upright(tmp_path):
    image = np.zeros((4, 6), np.uint8)
    image[0] = 255  # the first row; orientation 6 says that it is the right-hand column
    exif = Image.Exif()
    exif[0x0112] = 6
    save(tmp_path / "a" / "x" / "1.png", image, exif=exif)
    np.testing.assert_array_equal(image_folder.load(tmp_path).train["x"][0, :, :, 0], np.rot90(image, -1))


def test_sizes_must_agree_or_be_given(tmp_path):
    save(tmp_path / "a" / "x" / "1.png", grey(7, (5, 4)))
    save(tmp_path / "a" / "x" / "2.png", grey(7, (6, 4)))
    assert_refused(tmp_path, "2.png", "6×4", "5×4", "image_size=")
    assert image_folder.load(tmp_path, image_size=8).input_shape == (8, 8, 1)
    x = image_folder.load(tmp_path, image_size=(3, 9)).train["x"]
    np.testing.assert_array_equal(x, np.full((2, 3, 9, 1), 7))


@pytest.mark.parametrize("size", [0, -1, 10_001, (3,), (3, 0), 2.5, (1, 2, 3)])
def test_a_wrong_size_is_named(tmp_path, size):
    save(tmp_path / "a" / "x" / "1.png", grey())
    with pytest.raises(UsageError, match=r"^image_size: .*given.*allowed"):
        image_folder.load(tmp_path, image_size=size)


def test_a_link_that_leaves_the_folder_is_refused(tmp_path):
    outside, root = tmp_path / "outside", tmp_path / "root"
    inside = save(root / "a" / "x" / "1.png", grey(3))
    save(outside / "x" / "1.png", grey(4))
    (root / "a" / "x" / "2.png").symlink_to(inside)
    assert len(image_folder.load(root).train["y"]) == 2
    links = {
        "b": outside,
        "a/y": outside / "x",
        "a/x/3.png": outside / "x" / "1.png",
        "c": root / "c",
        "d": root / "no",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
        assert_refused(root, name.split("/")[-1], "a link that leaves")
        (root / name).unlink()


def test_names_that_would_break_a_line_are_refused(tmp_path):
    save(tmp_path / "two\nlines" / "x" / "1.png", grey())
    assert_refused(tmp_path, "two\\nlines", "printable")


def test_a_root_that_is_a_link_is_followed(tmp_path):
    save(tmp_path / "data" / "a" / "x" / "1.png", grey())
    (tmp_path / "link").symlink_to(tmp_path / "data")
    assert len(image_folder.load(tmp_path / "link").train["y"]) == 1


@pytest.mark.parametrize("place", ["1.png", "a/1.png", "train/a/1.png", "a/x/y/1.png"])
def test_an_image_in_another_place_is_refused(tmp_path, place):
    save(tmp_path / place, grey())
    assert_refused(tmp_path, "client/class/image is allowed")


def png(width, height, body=b""):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")


BROKEN = {
    "empty": (b"", "cannot be read as an image"),
    "no image": (b"hello", "cannot be read as an image"),
    "another format": (b"GIF89a" + bytes(50), "cannot be read as an image"),
    "cut": (png(4, 5, bytes(25))[:44], "cannot be read as an image"),
    "too few rows": (png(400, 500, bytes(25)), "cannot be read as an image"),
    "a bomb": (png(20_000, 20_000, bytes(25)), "decompression bomb"),
    "half a bomb": (png(10_000, 10_000, bytes(25)), "decompression bomb"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_image_is_named(tmp_path, kind):
    data, word = BROKEN[kind]
    save(tmp_path / "a" / "x" / "1.png", grey())
    (tmp_path / "a" / "x" / "2.png").write_bytes(data)
    assert_refused(tmp_path, str(tmp_path / "a" / "x" / "2.png"), word)


def test_images_of_16_bits_are_refused(tmp_path):
    save(tmp_path / "a" / "x" / "1.png", np.full((5, 4), 40_000, np.uint16))
    assert_refused(tmp_path, "1.png", "mode I;16", "8 bits")


def test_more_than_allowed_is_refused(tmp_path):
    write_folder(tmp_path, pictures())
    assert_refused(tmp_path, "720 bytes", "at most 700", max_bytes=700)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.write_bytes(b""), lambda path: path.mkdir()])
def test_what_is_no_folder_of_images(tmp_path, make):
    make(tmp_path / "a")
    assert_refused(tmp_path / "a", "not a folder" if not (tmp_path / "a").is_dir() else "holds no images")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_folder_that_cannot_be_read(tmp_path):
    save(tmp_path / "a" / "x" / "1.png", grey())
    (tmp_path / "a").chmod(0)
    assert_refused(tmp_path, "cannot be read")
    (tmp_path / "a").chmod(0o700)
