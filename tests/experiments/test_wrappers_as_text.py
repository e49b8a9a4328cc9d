"""What a user types for privacy and compression."""

from typing import Any

import pytest

import fedoptax as fx
from fedoptax.experiments.build import parse_codec, parse_privacy, wrap

PRIVACY = "clip=0.5,noise_multiplier=0.01,delta=1e-5"


def test_privacy_is_inside_and_compression_outside() -> None:
    assert wrap(direct := fx.fedavg(0.1)) is direct
    algorithm = wrap(fx.fedavg(0.1), PRIVACY, "qsgd:bits=2")
    assert algorithm.epsilon is not None and algorithm.weighting == "uniform"
    direct = fx.with_privacy(fx.fedavg(0.1), 0.5, 0.01, 1e-5)
    assert direct.epsilon is not None
    assert algorithm.epsilon(3, 5, 50) == direct.epsilon(3, 5, 50)
    assert type(algorithm.init(1.0)).__name__ == "CompressionState"


def test_values_are_read_as_numbers_and_none() -> None:
    assert parse_privacy(PRIVACY) == {"clip": 0.5, "noise_multiplier": 0.01, "delta": 1e-5}
    typed = parse_privacy(PRIVACY + ", target_quantile=0.5,seed=none")
    assert typed["seed"] is None and typed["target_quantile"] == 0.5
    assert parse_codec("qsgd:bits=2,norm=max").name == "qsgd:bits=2,bucket=512,norm=max"
    assert parse_codec("topk:fraction=0.02").name == "topk:fraction=0.02" and parse_codec("sign").name == "sign"
    assert parse_codec("topk").name == "topk:fraction=0.01"


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"privacy": ""}, "privacy"), ({"privacy": "clip=1"}, "privacy .*noise_multiplier, delta"),
        ({"privacy": PRIVACY + ",clp=1"}, "privacy.*clip"), ({"privacy": PRIVACY + ",clip=1"}, "privacy.*clip"),
        ({"privacy": "clip=abc,noise_multiplier=1,delta=1e-5"}, "clip"),
        ({"privacy": "clip=1,noise_multiplier=1,delta=2"}, "delta"), ({"compress": "gzip"}, "compress"),
        ({"compress": "qsgd:"}, "compress qsgd"), ({"compress": "qsgd:bit=4"}, "compress qsgd.*bits"),
        ({"compress": "qsgd:bits=9"}, "bits"), ({"compress": "topk:fraction=2"}, "fraction"),
        ({"compress": "sign:x=1"}, "compress sign"), ({"compress": "sign:"}, "compress sign"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_in_one_line(options: dict[str, Any], argument: str) -> None:
    with pytest.raises(fx.UsageError, match=f"^{argument}") as error:
        wrap(fx.fedavg(0.1), **options)
    assert "\n" not in str(error.value)
