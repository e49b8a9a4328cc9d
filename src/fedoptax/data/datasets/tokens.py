"""Ids of tokens as Adaptive Federated Optimization numbers them: padding, the vocabulary, then three special ones."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

PAD, OOV, BOS, EOS = "<pad>", "<unknown>", "<begin>", "<end>"


class SpecialTokens(NamedTuple):
    """Ids that stand for no word or character: padding, out of vocabulary, beginning and end of a sequence."""

    pad: int
    oov: int
    bos: int
    eos: int


def special_tokens(vocabulary: int) -> SpecialTokens:
    """Return the special ids beside those of a vocabulary of V, 1 … V: V + 4 ids in all.

    Source: the released code of Reddi et al., "Adaptive Federated Optimization", 2021 (google-research/federated,
    `utils/datasets/shakespeare_dataset.py` and `stackoverflow_word_prediction.py`).
    """
    return SpecialTokens(pad=0, oov=vocabulary + 1, bos=vocabulary + 2, eos=vocabulary + 3)


def token_names(vocabulary: Sequence[str]) -> tuple[str, ...]:
    """Name all ids beside those of a vocabulary, which begin with 1; see `special_tokens`."""
    return (PAD, *vocabulary, OOV, BOS, EOS)


def next_token(sequences: np.ndarray) -> dict[str, np.ndarray]:
    """Make x, all tokens but the last, and y, all but the first, of ids (n, length + 1)."""
    return {"x": sequences[:, :-1], "y": sequences[:, 1:]}
