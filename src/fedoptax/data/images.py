"""The image data sets, `data_dir -> Source`, and reading them before JAX is imported, which nothing here does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedoptax.data import ahead
from fedoptax.data.sources import Source

Load = Callable[[str | Path | None], Source]


def digits(data_dir: str | Path | None) -> Source:
    """The digits that come with scikit-learn."""
    from fedoptax.data.sources import digits as source

    return source.load()


def mnist(data_dir: str | Path | None) -> Source:
    """MNIST."""
    from fedoptax.data.sources import mnist as source

    return source.load(data_dir)


def mnist_by_writer(data_dir: str | Path | None) -> Source:
    """MNIST with its writers."""
    from fedoptax.data.sources import mnist as source

    return source.load(data_dir, writers=True)


def fashion_mnist(data_dir: str | Path | None) -> Source:
    """Fashion-MNIST."""
    from fedoptax.data.sources import fashion_mnist as source

    return source.load(data_dir)


def cifar10(data_dir: str | Path | None) -> Source:
    """CIFAR-10."""
    from fedoptax.data.sources import cifar

    return cifar.load10(data_dir)


def cifar100(data_dir: str | Path | None) -> Source:
    """CIFAR-100 with its fine labels; the coarse ones serve the Pachinko partition."""
    from fedoptax.data.sources import cifar

    return cifar.load100(data_dir)


def cifar100_coarse(data_dir: str | Path | None) -> Source:
    """CIFAR-100 with its coarse labels."""
    from fedoptax.data.sources import cifar

    return cifar.load100(data_dir, labels="coarse")


def emnist(data_dir: str | Path | None) -> Source:
    """EMNIST by writer, in TensorFlow Federated's files or in LEAF's."""
    from fedoptax.data.sources import emnist as source

    return source.load(data_dir)


_TASKS: dict[str, Load] = {  # what takes a core to unpack or to hash, and little of Python
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "cifar100-coarse": cifar100_coarse,
    "emnist-cr": emnist,
    "emnist-ae": emnist,
}
_BY_WRITER: dict[Load, Load] = {mnist: mnist_by_writer}


def read_ahead(task: str, data_dir: str | Path | None, partition: str | None) -> None:
    """Begins to read a task's images, if it is one of those, for the `read` that comes later.

    Whatever is wrong with them is told then.
    """
    if task in _TASKS:
        ahead.begin(_wanted(_TASKS[task], partition), data_dir)


def read(load: Load, data_dir: str | Path | None, partition: str | None) -> Source:
    """The images of `load`, with their natural clients if the partition asks for them; maybe begun by `read_ahead`."""
    return ahead.result(_wanted(load, partition), data_dir)


def _wanted(load: Load, partition: str | None) -> Load:
    return _BY_WRITER.get(load, load) if partition == "writers" else load
