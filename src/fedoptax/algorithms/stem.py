"""STEM: variance-reduced momentum at the clients and at the server.

Khanduri et al. 2021, *STEM: A Stochastic Two-Sided Momentum Algorithm Achieving Near-Optimal Sample and Communication
Complexities for Federated Learning*.
"""

from fedoptax.algorithm import FedAlgorithm, Tree
from fedoptax.algorithms.fafed import FAFEDState, FAFEDUpload, variance_reduced
from fedoptax.schedules import LearningRate, check_lr


def stem(lr: LearningRate, alpha: LearningRate = 0.1) -> FedAlgorithm[FAFEDState, FAFEDState, Tree, FAFEDUpload]:
    """STEM (Khanduri et al. 2021): FAFED without v and A; two vectors each way, two gradients per step.

    Round 0: mᵢ is the mean of client i's minibatch gradients at x₀; the server sets m to their mean and x ← x₀ − η₀ m.
    Every later round is q = K iterations, each on one batch ξ: m ← g(x; ξ) + (1−α_t)(m − g(x_prev; ξ)), then
    x ← x − η_t m. The last one uploads x and m instead of stepping; the server averages both and steps
    x ← x − η_t m. Cohorts, unequal K, x_prev and schedules are as in `fafed`.

    Args:
      lr: η > 0, a number or a schedule over the iterations t.
      alpha: α in (0, 1], a number or a schedule over the iterations t; 1 is no momentum.
    """
    check_lr(lr=lr)
    check_lr(alpha=alpha, most=1)
    return variance_reduced(lr, alpha, None)
