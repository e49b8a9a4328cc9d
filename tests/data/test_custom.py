"""Your own data: the same examples are the same `Source` in every format."""

from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedoptax.data.custom import load_file
from fedoptax.data.datasets.source import Source, holdout
from fedoptax.data.schema import Schema
from fedoptax.tasks import load_task
from refusals import refused


class Part(NamedTuple):
    """Examples x (n, …), labels (n,) and clients (n,), as a user has them."""

    x: np.ndarray
    y: np.ndarray
    client: np.ndarray


def vectors(seed=0, n=30, labels=("ant", "bee", "cow"), clients=("a", "b", "c")):
    rng = np.random.default_rng(seed)
    return Part(rng.normal(size=(n, 3)).astype(np.float32), rng.choice(labels, n), rng.choice(clients, n))


def pictures(seed=0, each=2, channels=3):
    """In the order in which the files of a folder are read."""
    cells = [(client, label) for client in ("a", "b") for label in ("0", "1", "10") for _ in range(each)]
    x = np.random.default_rng(seed).integers(0, 256, (len(cells), 5, 4, channels), np.uint8)
    return Part(x, np.array([label for _, label in cells]), np.array([client for client, _ in cells]))


def write_npz(path, train, test=None):
    parts = {"": train} if test is None else {"": train, "_test": test}
    arrays = {f"{name}{end}": value for end, part in parts.items() for name, value in part._asdict().items()}
    np.savez_compressed(path, **arrays)
    return path


def write_table(path, train, test):
    whole = Part(*(np.concatenate(pair) for pair in zip(train, test)))
    frame = pd.DataFrame(whole.x, columns=["f0", "f1", "f2"]).assign(client=whole.client, label=whole.y)
    frame["part"] = np.repeat(["train", "test"], [len(train.y), len(test.y)])
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, sep="\t" if path.suffix == ".tsv" else ",", index=False)
    return path


def write_folder(root, part):
    for i, (x, label, client) in enumerate(zip(*part)):
        folder = root / str(client) / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x.squeeze()).save(folder / f"{i:04}.png")
    return root


def assert_same(a: Source, b: Source) -> None:
    for part_a, part_b in ((a.train, b.train), (a.test, b.test)):
        for name in ("x", "y"):
            assert part_a[name].dtype == part_b[name].dtype
            np.testing.assert_array_equal(part_a[name], part_b[name])
    assert (a.num_classes, a.input_shape, a.class_names) == (b.num_classes, b.input_shape, b.class_names)
    for groups_a, groups_b in ((a.train_groups, b.train_groups), (a.test_groups, b.test_groups)):
        assert (groups_a is None) == (groups_b is None)
        if groups_a is not None:
            assert groups_a.dtype == groups_b.dtype
            np.testing.assert_array_equal(groups_a, groups_b)


@pytest.mark.parametrize("names", [("ant", "bee", "cow"), (2, 10, -1)])
def test_vectors_are_the_same_in_every_format(tmp_path, names):
    train, test = vectors(0, labels=names, clients=names), vectors(1, 12, labels=names, clients=names)
    expected = load_file(write_npz(tmp_path / "a.npz", train, test))
    np.testing.assert_array_equal(expected.train["x"], train.x)
    assert expected.class_names == tuple(str(name) for name in sorted(names))
    np.testing.assert_array_equal(np.array(sorted(names))[expected.train["y"]], train.y)
    np.testing.assert_array_equal(expected.test_groups, test.client)
    for suffix in (".csv", ".tsv", ".parquet"):
        path = write_table(tmp_path / f"a{suffix}", train, test)
        assert_same(load_file(path, split="part"), expected)
    assert len(load_task(f"file:{path}", split="part").test["y"]) == 12


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_the_same_in_every_format(tmp_path, channels):
    train, test = pictures(0, channels=channels), pictures(1, each=1, channels=channels)
    write_folder(tmp_path / "root" / "train", train)
    write_folder(tmp_path / "root" / "test", test)
    (tmp_path / "root" / "train" / "a" / ".hidden.png").write_bytes(b"")
    (tmp_path / "root" / "train" / "a" / "0" / "notes.txt").write_bytes(b"")
    expected = load_file(tmp_path / "root")
    np.testing.assert_array_equal(expected.train["x"], train.x)
    assert expected.class_names == ("0", "1", "10") and list(expected.test_groups) == list(test.client)
    assert_same(load_file(write_npz(tmp_path / "a.npz", train, test)), expected)


def test_images_are_turned_upright_and_must_have_one_size(tmp_path):
    folder = tmp_path / "root" / "me" / "cat"
    folder.mkdir(parents=True)
    grey = Image.fromarray(np.arange(20, dtype=np.uint8).reshape(4, 5))
    exif = grey.getexif()
    exif[0x0112] = 6  # turned by 90 degrees
    grey.save(folder / "1.png", exif=exif)
    source = load_file(tmp_path / "root", test_fraction=0.0)
    np.testing.assert_array_equal(source.train["x"][0, :, :, 0], np.rot90(np.asarray(grey), -1))
    Image.new("P", (9, 9), 1).save(folder / "2.gif")
    refused(lambda: load_file(tmp_path / "root"), "2.gif must have 5×4 pixels")
    resized = load_file(tmp_path / "root", image_size=(6, 7), test_fraction=0.0)
    assert resized.train["x"].shape == (2, 6, 7, 3)
    np.testing.assert_array_equal(resized.train["x"][0, :, :, 0], resized.train["x"][0, :, :, 2])


def test_a_fraction_of_every_client_is_held_out(tmp_path):
    client = np.repeat(["a", "b", "c", "d"], [10, 5, 1, 3])
    part = Part(np.arange(19.0)[:, None], np.arange(19) % 2, client)
    path = write_npz(tmp_path / "a.npz", part)
    source = load_file(path)
    held = {name: int((source.test_groups == name).sum()) for name in "abcd"}
    assert held == {"a": 2, "b": 1, "c": 0, "d": 1}
    assert sorted([*source.train["x"][:, 0], *source.test["x"][:, 0]]) == list(range(19))
    whole = load_file(path, test_fraction=0.0)
    assert len(whole.test["y"]) == 0
    assert_same(holdout(whole, 0.2, 0), source)
    assert not np.array_equal(holdout(whole, 0.2, 1).test["x"], source.test["x"])
    without = holdout(whole._replace(train_groups=None, test_groups=None), 0.5, 0)
    assert len(without.test["y"]) == 10 and without.test_groups is None
    refused(lambda: holdout(whole, 0.01, 0), "fraction")
    write_npz(path, Part(np.arange(90.0), np.arange(90) % 2, np.arange(90) // 10))
    places = holdout(load_file(path, test_fraction=0), 0.2, 0, by_client=True).test["x"] % 10
    assert len(np.unique(places)) > 2  # clients of the same size hold out rows of their own


def npz(**changes):
    return lambda path: np.savez(path / "a.npz", **{"x": np.ones((2, 3)), "y": [0, 1]} | changes)


def table(text, name="a.csv"):
    return lambda path: (path / name).write_text(text, encoding="utf-8")


def image(place, mode="L"):
    def make(path):
        (path / "a" / place).parent.mkdir(parents=True)
        Image.new(mode, (2, 2)).save(path / "a" / place)

    return make


SCHEMA = Schema.read('target = {column = "label", classes = ["a", "b"]}\n[columns]\nf = {kind = "number"}\n')

BROKEN = {
    "no label": (npz(), {"label": "z"}, "lacks 'z'"), "lengths": (npz(y=[0]), {}, "equally many"),
    "another shape to test": (npz(x_test=np.ones((1, 2)), y_test=[0]), {}, "test examples"),
    "clients of one part": (npz(client=[0, 1], x_test=np.ones((1, 3)), y_test=[0]), {}, "lacks 'client_test'"),
    "a fraction as label": (npz(y=[0.5, 1]), {}, "'y', row 1"),
    "NaN": (npz(x=np.array([[1.0], [np.nan]])), {}, "'x', row 2"),
    "too large a number": (npz(x=np.array([[1], [2**31]])), {}, "'x' must be within int32"),
    "text as features": (npz(x=np.array(["a", "b"])), {}, "'x' must hold numbers"),
    "objects": (npz(x=np.array([{}, {}])), {}, "allow_pickle"), "no such array": (npz(), {"client": "site"}, "site"),
    "a missing label": (table("f,label\n1,a\n2,\n"), {}, "'label', row 2"),
    "text in a cell": (table("f,label\nhigh,a\n2,b\n"), {}, "'f', row 1"),
    "a row too long": (table("f,label\n1,a\n2,b,c\n"), {}, "a.csv"),
    "no such column": (table("f,species\n1,a\n"), {}, "'label'"),
    "no features": (table("label\na\n"), {}, "no columns of features"),
    "no rows": (table("f,label\n"), {}, "no training examples"), "1": (table("f,label\n1,1\n2,1.0\n"), {}, "1 and 1.0"),
    "another split": (table("f,label,part\n1,a,valid\n"), {"split": "part"}, "'part'"),
    "no parquet": (table("PAR1", "a.parquet"), {}, "a.parquet"),
    "an image too high up": (image("cat/1.png"), {}, "1.png"), "16 bits": (image("me/cat/1.png", "I;16"), {}, "1.png"),
    "a split of images for validation": (lambda path: [(path / "a" / n).mkdir(parents=True) for n in ("train", "val")],
        {}, "no folder besides train and test, got 'val'"),
    "a label beside a schema": (table("f,label\n1,a\n2,b\n"), {"label": "f", "schema": SCHEMA}, "label does not apply"),
    "a class that the schema lacks": (table("f,label\n1,a\n2,c\n"), {"schema": SCHEMA}, "class 'c' is none of the 2"),
    "no images": (lambda path: (path / "a").mkdir(), {}, "no training images"),
    "a table's size of images": (table("f,label\n1,a\n"), {"image_size": 8}, "image_size"),
    "a split of arrays": (npz(), {"split": "part"}, "split"),
    "a column of images": (image("me/cat/1.png"), {"client": "me"}, "client"),
    "images of no size": (image("me/cat/1.png"), {"image_size": 0}, "image_size"),
    "a fraction beside a test part": (npz(x_test=np.ones((1, 3)), y_test=[0]), {"test_fraction": 0.5}, "fraction"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_data_and_options_that_do_not_apply_are_refused_by_their_place_or_name(tmp_path, case):
    make, options, words = BROKEN[case]
    make(tmp_path)
    (path,) = tmp_path.iterdir()
    refused(lambda: load_file(path, **options), words)
