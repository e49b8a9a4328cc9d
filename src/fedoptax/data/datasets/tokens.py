"""Ids of tokens as Adaptive Federated Optimization numbers them: padding, the vocabulary, then three special ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class SpecialTokens(NamedTuple):
    """Ids that stand for no word or character; a vocabulary of V has 1 … V, V + 4 ids in all.

    Attributes:
      pad: 0, fills up a short sequence.
      oov: V + 1, stands for whatever is not in the vocabulary.
      bos: V + 2, begins a sequence.
      eos: V + 3, ends one.
    """

    pad: int
    oov: int
    bos: int
    eos: int


def special_tokens(vocabulary: int) -> SpecialTokens:
    """Return the special ids for a vocabulary of that size.

    Source: the released code of Reddi et al., "Adaptive Federated Optimization", 2021 (google-research/federated,
    `utils/datasets/shakespeare_dataset.py` and `stackoverflow_word_prediction.py`).
    """
    return SpecialTokens(pad=0, oov=vocabulary + 1, bos=vocabulary + 2, eos=vocabulary + 3)


def next_token(sequences: np.ndarray) -> dict[str, np.ndarray]:
    """Make inputs x, all tokens but the last, and targets y, all but the first.

    Args:
      sequences: ids of shape (n, length + 1).

    Returns:
      `x` and `y` of shape (n, length), views of `sequences`.
    """
    return {"x": sequences[:, :-1], "y": sequences[:, 1:]}
