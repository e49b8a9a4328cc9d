"""Data sets of other libraries: views and transforms are applied, or refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedoptax.data.custom import from_dataset
from refusals import DAYS, NUMBERS, SPANS, refused


class Endless:
    """What `torch.utils.data.IterableDataset` is: of a length perhaps, but without items."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Any:
        return iter([(1.0, 0)])


PICTURES = [(Image.new("RGB", (3, 2), (i, 0, 0)), i) for i in range(2)]
PLANES = [(np.arange(24.0).reshape(3, 2, 4), i) for i in range(2)]


def test_channels_first_turns_arrays_alone() -> None:
    turned = from_dataset(PLANES, channels_first=True).train["x"][0]
    np.testing.assert_array_equal(turned, PLANES[0][0].transpose(1, 2, 0))
    assert from_dataset(PICTURES).train["x"].shape == (2, 2, 3, 3)
    for items in (PICTURES, [(1.0, 0)], [([1.0, 2.0], 0)]):
        refused(lambda: from_dataset(items, channels_first=True), "channels_first")  # noqa: B023


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: from_dataset(Endless()), "dataset: train cannot be read"),
        (lambda: from_dataset(iter([(1.0, 0)])), "dataset"),
        (lambda: from_dataset([(1.0, 0)], test=iter([(1.0, 0)])), "dataset"),
        (lambda: from_dataset(pd.DataFrame(NUMBERS)), "dataset: train cannot be read"),
        (lambda: from_dataset([(1.0, 0)], x="image"), "x does not apply"),
        (lambda: from_dataset([(1.0, 0)], image_size=8), "image_size"),
        (lambda: from_dataset([(1.0, 0)], client=lambda: 0), "client"),
        (lambda: from_dataset({"train": [(1.0, 0)]}, test=[(1.0, 0)]), "test"),
    ],
)
def test_what_is_no_data_set_of_pairs_is_refused(call: Callable[[], Any], words: str) -> None:
    refused(call, words)


def test_views_of_hugging_face_are_applied_or_refused() -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")
    data = datasets.Dataset.from_dict({"f": [1.0, 2.0], "g": [3.0, 4.0], "label": [0, 1]})
    assert from_dataset(data.with_format("numpy", columns=["g", "label"])).train["x"].tolist() == [[3], [4]]
    assert from_dataset(data.select([1])).train["x"].tolist() == [[2, 4]]
    refused(lambda: from_dataset(data.with_transform(lambda batch: batch)), "train", "transform")
    refused(lambda: from_dataset(data, test=data.with_transform(lambda batch: batch)), "test", "transform")
    refused(lambda: from_dataset(data.to_iterable_dataset()), "IterableDataset")
    refused(lambda: from_dataset(data, client=lambda i: i), "client")
    refused(lambda: from_dataset(data, test_client=[0, 1]), "test_client")
    refused(lambda: from_dataset(data, x=["f", "f"]), "'f'")
    for times in (DAYS, SPANS, [day.date() for day in DAYS], [[span] for span in SPANS]):
        refused(lambda: from_dataset(datasets.Dataset.from_dict({"t": times, "label": [0, 1]})), "'t'")  # noqa: B023
    pictures = datasets.Dataset.from_dict({"image": [image for image, _ in PICTURES], "label": [0, 1]})
    undecoded = pictures.cast_column("image", datasets.Image(decode=False))
    np.testing.assert_array_equal(from_dataset(undecoded).train["x"], from_dataset(PICTURES).train["x"])
    refused(lambda: from_dataset(pictures, channels_first=True), "channels_first")
