"""The ε of `with_privacy` against formulas written down here, and the convention of dp-accounting that it relies on."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy import integrate, optimize, stats

from fedoptax.wrappers.privacy import epsilon

DELTA = 1e-5


def gaussian_delta(eps: float, mu: float) -> float:
    """δ(ε) of N(0, 1) against N(μ, 1) (Balle, Wang 2018, Theorem 8; Dong, Roth, Su 2019, Corollary 2.13)."""
    return float(stats.norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * stats.norm.cdf(-mu / 2 - eps / mu))


@pytest.mark.parametrize(("z", "rounds"), [(1.0, 1), (4.0, 10), (20.0, 500), (0.5, 3)])
def test_epsilon_is_exact_if_everyone_takes_part(z, rounds):
    """T rounds are one Gaussian mechanism with sensitivity 2C/|S| and T times the precision: μ = 2√T/z."""
    mu = 2 * math.sqrt(rounds) / z
    expected = optimize.brentq(lambda e: gaussian_delta(e, mu) - DELTA, 0, 500)
    assert epsilon(z, DELTA, rounds, 7, 7) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("z", "cohort", "clients"), [(2.0, 10, 100), (1.0, 5, 1000), (4.0, 50, 100)])
def test_epsilon_of_a_sampled_round_lies_between_known_bounds(z, cohort, clients):
    """Reached: all clients send +C, or one sends −C. Proved: Wang, Balle, Kasiviswanathan 2019, Theorem 9."""
    q, mu = cohort / clients, 2 / z

    def reached(eps: float) -> float:
        def excess(x: float) -> float:
            p = stats.norm.pdf(x)
            return max(0.0, (1 - q) * p + q * stats.norm.pdf(x - mu) - math.exp(eps) * p)

        return integrate.quad(excess, -10, 10 + mu, limit=500, points=[0, mu])[0]

    def proved(order: int) -> float:
        rdp = [a * mu**2 / 2 for a in range(order + 1)]
        terms = [0.0, 2 * math.log(q) + math.log(math.comb(order, 2))]
        terms[1] += min(math.log(4 * math.expm1(rdp[2])), rdp[2] + math.log(2))
        for j in range(3, order + 1):
            terms.append(j * math.log(q) + math.log(math.comb(order, j)) + (j - 1) * rdp[j] + math.log(2))
        return float(np.logaddexp.reduce(terms)) / (order - 1) + math.log(1 / DELTA) / (order - 1)

    lower = optimize.brentq(lambda e: reached(e) - DELTA, 1e-3, 60)
    assert lower < epsilon(z, DELTA, 1, cohort, clients) <= min(proved(order) for order in range(2, 60))


def test_the_accountant_takes_the_ratio_to_the_sensitivity():
    """Rényi divergence α/(2σ²) at a multiplier of σ under replace-one: halving z is ours to do, and only ours."""
    relation = NeighboringRelation.REPLACE_ONE
    for event in (GaussianDpEvent(1.5), SampledWithoutReplacementDpEvent(9, 9, GaussianDpEvent(1.5))):
        accountant = RdpAccountant([2.0, 8.0], relation).compose(event)
        np.testing.assert_allclose(accountant.rdp, np.array([2.0, 8.0]) / (2 * 1.5**2))
    direct = RdpAccountant(neighboring_relation=relation).compose(
        SampledWithoutReplacementDpEvent(1000, 50, GaussianDpEvent(1.0)), 60
    )
    assert epsilon(2.0, 1e-4, 60, 50, 1000) == pytest.approx(float(direct.get_epsilon(1e-4)))


@pytest.mark.parametrize(("z", "cohort"), [(0.05, 10), (1.0, 99), (0.01, 50)])
def test_sampling_never_costs(z, cohort):
    """Where the sampled bound is loose, that of everyone holds."""
    assert epsilon(z, DELTA, 20, cohort, 100) <= epsilon(z, DELTA, 20, 100, 100)
