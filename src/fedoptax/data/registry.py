"""The published data sets: files, addresses, sizes, hashes and counts, each with its source."""

from collections.abc import Mapping
from typing import NamedTuple


class File(NamedTuple):
    """A file below the data set's folder, as its reader expects it."""

    path: str
    hash: str | None = None  # "md5:…" or "sha256:…"; None where only the archive it comes in has a published hash


class Download(NamedTuple):
    """A downloadable file."""

    name: str
    urls: tuple[str, ...]  # tried in order
    hash: str  # as in `File`
    members: tuple[File, ...] = ()  # the files to keep of an archive; empty if the readers use the file directly

    @property
    def files(self) -> tuple[File, ...]:
        """The files that are in the folder when the download is done."""
        return self.members or (File(self.name, self.hash),)


class DataSet(NamedTuple):
    """A data set as it is published."""

    downloads: tuple[Download, ...]
    counts: Mapping[str, int]  # of a complete copy, such as `train_examples`; empty where copies differ
    by_hand: str = ""  # how to make it, where it cannot be downloaded


def _each(urls: tuple[str, ...], files: Mapping[str, str]) -> tuple[Download, ...]:
    """Return files that are offered one by one: name -> MD5; each address ends with the name."""
    return tuple(Download(name, tuple(url + name for url in urls), f"md5:{md5}") for name, md5 in files.items())


def _archive(url: str, hash: str, members: Mapping[str, str]) -> Download:
    return Download(url.rpartition("/")[2], (url,), hash, tuple(File(*member) for member in members.items()))


def _tff(sha256: str, name: str, *parts: str) -> Download:
    """Return an archive of TensorFlow Federated: a file for each part, or one with its name; they have no hashes."""
    members = tuple(File(f"{name}_{part}.h5") for part in parts) or (File(name),)
    return Download(f"{name}.tar.bz2", (f"{_TFF}{name}.tar.bz2",), f"sha256:{sha256}", members)


_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_TFF = "https://storage.googleapis.com/tff-datasets-public/"
_GITHUB = "https://raw.githubusercontent.com/"

# MD5: torchvision, `datasets/mnist.py`; the first two addresses are mirrors of the third, which often refuses.
_MNIST = _each(
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
)
# MD5: torchvision, `datasets/mnist.py`. Only the labels: they name the writers of MNIST's digits.
_QMNIST = _each(
    (f"{_GITHUB}facebookresearch/qmnist/94061367ec2e099ea18c553c75727ecf849ddb9b/",),
    {
        "qmnist-train-labels-idx2-int.gz": "0058f8dd561b90ffdd0f734c6a30e5e4",
        "qmnist-test-labels-idx2-int.gz": "5b5b05890a5e13444e108efe57b788aa",
    },
)
# MD5: the table in the README of github.com/zalandoresearch/fashion-mnist.
_FASHION_MNIST = _each(
    (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        f"{_GITHUB}zalandoresearch/fashion-mnist/b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion/",
    ),
    {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
)
# MD5 of the archive and of its files: torchvision, `datasets/cifar.py`; the archive's also on the publisher's page.
_CIFAR10 = _archive(
    f"{_CIFAR}cifar-10-python.tar.gz",
    "md5:c58f30108f718f92721af3b95e74349a",
    {
        "cifar-10-batches-py/data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
        "cifar-10-batches-py/data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
        "cifar-10-batches-py/data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
        "cifar-10-batches-py/data_batch_4": "md5:634d18415352ddfa80567beed471001a",
        "cifar-10-batches-py/data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
        "cifar-10-batches-py/test_batch": "md5:40351d587109b95175f43aff81a1287e",
        "cifar-10-batches-py/batches.meta": "md5:5ff9c542aee3614f3951f8cda6e48888",
    },
)
_CIFAR100 = _archive(
    f"{_CIFAR}cifar-100-python.tar.gz",
    "md5:eb9058c3a382ffc7106e4002c42a8d85",
    {
        "cifar-100-python/train": "md5:16019d7e3df5f24257cddd939b257f8d",
        "cifar-100-python/test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
        "cifar-100-python/meta": "md5:7973b15100ade9c7d40fb424638fde48",
    },
)
# SHA-256: TensorFlow Federated, `simulation/datasets/emnist/load_data.py` (2019; later releases read another format),
# `shakespeare.py` and `stackoverflow.py` (2020).
_EMNIST = _tff("fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0", "fed_emnist", "train", "test")
_SHAKESPEARE = _tff("0285be9906cb5f268092eee4edeeacfc2af4574f2941f7cc2f08a321d7f5c707", "shakespeare", "train", "test")
_STACKOVERFLOW = (
    _tff(
        "99eca2f8b8327a09e5fc123979df2d237acbc5e52322f6d86bf523ee47b961a2",
        *("stackoverflow", "train", "test", "held_out"),
    ),
    _tff("1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c", "stackoverflow.word_count"),
    _tff("6fe281cec490d9384a290d560072438e7e2b377bbb823876ce7bd6f82696772d", "stackoverflow.tag_count"),
)
# MD5: of PyTorch's copy at this commit; the publisher's own address (s3.amazonaws.com/research.metamind.io) no longer
# answers.
_WIKITEXT_2 = _each(
    (f"{_GITHUB}pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8/word_language_model/data/wikitext-2/",),
    {"train.txt": "34a77ebe59551b3a3b3d8c0a2797c976", "test.txt": "781c9418ab9414bd09e4aad825aae752"},
)

DATA_SETS: dict[str, DataSet] = {
    "mnist": DataSet(_MNIST, {"train_examples": 60_000, "test_examples": 10_000}),
    "qmnist": DataSet(_QMNIST, {"train_clients": 539, "test_clients": 297}),
    "fashion-mnist": DataSet(_FASHION_MNIST, {"train_examples": 60_000, "test_examples": 10_000}),
    "cifar10": DataSet((_CIFAR10,), {"train_examples": 50_000, "test_examples": 10_000}),
    "cifar100": DataSet((_CIFAR100,), {"train_examples": 50_000, "test_examples": 10_000}),
    "emnist": DataSet(
        (_EMNIST,), {"train_examples": 671_585, "test_examples": 77_483, "train_clients": 3_400, "test_clients": 3_400}
    ),
    "femnist": DataSet(
        (),
        {},
        by_hand="cannot be downloaded ready-made; make it with LEAF (github.com/TalwalkarLab/leaf, in data/femnist: "
        "./preprocess.sh -s niid --sf 1.0 -k 0 -t sample) and put its data/train/*.json into femnist/train and "
        "data/test/*.json into femnist/test",
    ),
    "shakespeare": DataSet(
        (_SHAKESPEARE,), {"train_snippets": 16_068, "test_snippets": 2_356, "train_clients": 715, "test_clients": 715}
    ),
    "stackoverflow": DataSet(_STACKOVERFLOW, {"train_clients": 342_477, "test_clients": 204_088}),
    "wikitext-2": DataSet(
        _WIKITEXT_2, {"train_tokens": 2_088_628, "test_tokens": 245_569, "train_clients": 600, "test_clients": 60}
    ),
}
"""The published data sets, by name, which is also the name of the subfolder."""
