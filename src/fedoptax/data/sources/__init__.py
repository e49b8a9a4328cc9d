"""One data set a file: each reads the upstream format and hands back a `Source`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Source(NamedTuple):
    """A data set before it is divided among clients; n examples to train on, m to test on.

    Attributes:
      train: `"x"` of shape (n, *input_shape) in its stored type, `"y"` int32 of shape (n,);
        of text, both are ids of shape (n, length), or as its module says.
      test: the same for the m test examples.
      num_classes: labels are 0 … num_classes − 1.
      input_shape: the shape of one example.
      train_groups: the natural client (a writer, a role) of each training example, shape (n,), or `None`.
      test_groups: the same for the test examples, shape (m,), or `None`.
      train_coarse: the superclass of each training example, int32 of shape (n,), or `None` if classes have none.
      client_names: the name of each natural client, by its number in the groups; those from N on have test examples
        only. `None` where the groups are ids of another kind.
      vocabulary: the word of each id, for text, or `None`.
      counts: numbers of the source that its arrays do not show, such as snippets before they are cut, or `None`.
      class_names: what each label is called, or `None` if it has no other name than its number.
    """

    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    num_classes: int
    input_shape: tuple[int, ...]
    train_groups: np.ndarray | None = None
    test_groups: np.ndarray | None = None
    train_coarse: np.ndarray | None = None
    client_names: np.ndarray | None = None
    vocabulary: np.ndarray | None = None
    counts: dict[str, int] | None = None
    class_names: tuple[str, ...] | None = None
