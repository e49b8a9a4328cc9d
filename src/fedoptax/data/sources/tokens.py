"""Ids of tokens as Adaptive Federated Optimization numbers them: padding, the vocabulary, then three special ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class SpecialTokens(NamedTuple):
    """The ids that are no word or character; those of a vocabulary of V are 1 … V, and there are V + 4 ids in all.

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
    """The special ids beside a vocabulary of that size.

    Source: the released code of Reddi et al., "Adaptive Federated Optimization", 2021 (google-research/federated,
    `utils/datasets/shakespeare_dataset.py` and `stackoverflow_word_prediction.py`).
    """
    return SpecialTokens(pad=0, oov=vocabulary + 1, bos=vocabulary + 2, eos=vocabulary + 3)


def next_token(sequences: np.ndarray) -> dict[str, np.ndarray]:
    """Inputs and targets of next-token prediction: x is all tokens but the last, y all but the first.

    Args:
      sequences: ids of shape (n, length + 1).

    Returns:
      `x` and `y` of shape (n, length), views of `sequences`.
    """
    return {"x": sequences[:, :-1], "y": sequences[:, 1:]}
