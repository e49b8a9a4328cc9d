"""The ε that rounds spend, by Google's dp-accounting (the extra `privacy`).

Neighbours differ by one client replaced by any other. The mean of |S| uploads of norm ≤ C then moves by at most 2C/|S|
and its noise has the standard deviation zC/|S|: z/2 times the sensitivity. That ratio is what RdpAccountant's formulas
take under REPLACE_ONE (`_compute_rdp_sample_wor_gaussian`: "the ratio … to the l2-sensitivity"; the docstring of
`GaussianDpEvent`, s/C, is that of add-or-remove), hence the factor 1/2. A test checks this convention.
"""

import math
from functools import lru_cache

import numpy as np

from fedoptax.errors import UsageError, check_int, is_traced
from fedoptax.schedules import Number


def epsilon(noise_multiplier: Number, delta: float, rounds: int, cohort_size: int, num_clients: int) -> float:
    """The ε ≥ 0 at δ that `rounds` rounds spend, each a Gaussian mean over a cohort sampled without replacement.

    The smaller of two upper bounds: Rényi accounting of the sampled mechanism (Wang, Balle, Kasiviswanathan 2019,
    Theorem 27, via dp-accounting), and the exact ε of the mechanism without sampling (Balle, Wang 2018), the
    only one when everyone takes part. Infinity for z = 0.
    """
    if is_traced(noise_multiplier):
        raise UsageError("noise_multiplier must be a number to compute ε, got a traced value")
    check_int("rounds", rounds, 0)
    check_int("cohort_size", cohort_size, 1, num_clients)
    ratio = float(noise_multiplier) / 2
    if rounds == 0 or ratio == 0:
        return 0.0 if rounds == 0 else math.inf
    import dp_accounting  # here, because it takes seconds, and is an extra

    with np.errstate(all="ignore"):  # its exponentials underflow, as they may
        everyone = float(dp_accounting.get_epsilon_gaussian(ratio / math.sqrt(rounds), delta))
        if cohort_size == num_clients:
            return everyone
        orders, a_round = _renyi(ratio, int(cohort_size), int(num_clients))
        return min(everyone, float(dp_accounting.rdp.compute_epsilon(orders, rounds * a_round, delta)[0]))


@lru_cache(maxsize=64)
def _renyi(ratio: float, cohort_size: int, num_clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Orders, and the Rényi divergences of one round at them; half a second, so kept."""
    import dp_accounting

    noise = dp_accounting.GaussianDpEvent(ratio)
    accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(num_clients, cohort_size, noise))
    return accountant.orders, accountant.rdp
