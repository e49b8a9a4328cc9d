"""Partitions of a data set among clients: iid, by size, by label (Dirichlet, Pachinko, few classes, shards).

A partition is one sorted int64 index array per client; together they hold every example exactly once, no client is
empty, and the same seed gives the same partition. Each function takes the labels, (n,), of which those that ignore the
labels use only the number, or n itself; the number of clients N, from 1 to n; and the seed of all its draws. In equal
sizes a client has n // N examples, the first n mod N one more. An argument out of range is a `UsageError`.
"""

import numpy as np
from numpy.typing import ArrayLike

from fedoptax.data.federated import as_parts
from fedoptax.data.heterogeneity import label_counts as label_counts
from fedoptax.errors import UsageError, check_choice, check_int, check_number

Parts = list[np.ndarray]
"""The examples of each client: sorted int64 index arrays."""

_MAX_ALPHA = 1e9  # q is uniform in all but name; far beyond it the gamma draws overflow
_REDRAWS = 20
_MAX_SIGMA, _MIN_EXPONENT = 100.0, 0.01  # beyond them one client holds everything


def dirichlet(labels: ArrayLike, num_clients: int, alpha: float, seed: int) -> Parts:
    """Give each client its own class distribution q ~ Dir(α, …, α), in equal sizes.

    A client's examples are drawn by its q, without replacement; when a class is exhausted, q is renormalised over the
    others. This is the CIFAR-10 partition of "Adaptive Federated Optimization". α is the parameter of each class: Hsu
    et al. write Dir(α·p), so their α at a uniform prior p is this one times the number of classes. `alpha` is > 0: near
    0 a client has one class, at infinity it has all alike.

    Source: Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated visual
    classification", 2019.
    """
    classes, left = as_classes(labels, num_clients)
    check_alpha("alpha", alpha)
    rng = generator(seed)
    wanted = rng.dirichlet(np.full(len(left), alpha, np.float64), num_clients)
    sizes = even(len(classes), num_clients)
    counts = np.zeros((num_clients, len(left)), np.int64)
    for client in rng.permutation(num_clients):  # in random order: the last ones take what is left
        counts[client] = draw(rng, wanted[client], left, int(sizes[client]))
        left = left - counts[client]
    return parts_of(deal(classes, counts, rng), num_clients)


def dirichlet_by_class(labels: ArrayLike, num_clients: int, alpha: float, seed: int) -> Parts:
    """Divide each class among the clients by its own draw of Dir(α, …, α); sizes vary.

    Draws again, up to 20 times, until every client has an example; then clients that still have none take one of the
    largest class of the largest client. `alpha` is > 0: near 0 a class belongs to one client, at infinity the partition
    is iid.

    Source: Yurochkin et al., "Bayesian nonparametric federated learning of neural networks", 2019.
    """
    classes, totals = as_classes(labels, num_clients)
    check_alpha("alpha", alpha)
    rng = generator(seed)
    for _ in range(_REDRAWS):
        shares = rng.dirichlet(np.full(num_clients, alpha, np.float64), len(totals))
        edges = np.rint(np.cumsum(shares, axis=1) * totals[:, None]).astype(np.int64)
        edges[:, -1] = totals
        counts = np.diff(edges, axis=1, prepend=0).T.copy()
        if counts.sum(1).all():
            break
    for client in np.flatnonzero(counts.sum(1) == 0):
        donor = int(np.argmax(counts.sum(1)))
        label = int(np.argmax(counts[donor]))
        counts[donor, label] -= 1
        counts[client, label] += 1
    return parts_of(deal(classes, counts, rng), num_clients)


def pachinko(
    coarse: ArrayLike, fine: ArrayLike, num_clients: int, *, seed: int, alpha_coarse: float = 0.1,
    alpha_fine: float = 10.0,
) -> Parts:  # fmt: skip
    """Give each client a distribution over coarse labels and one below each, in equal sizes.

    An example of a client is drawn by its coarse distribution ~ Dir(alpha_coarse), then by that label's fine
    distribution ~ Dir(alpha_fine), without replacement. A fine label that is exhausted is taken out and the
    distribution over its siblings renormalised; a coarse label all of whose fine ones are exhausted likewise.
    The defaults, with 500 clients, are the CIFAR-100 of "Adaptive Federated Optimization".

    Args:
      coarse, fine: the labels of each example, shape (n,); a fine label lies under one coarse label.
      alpha_coarse: concentration over the coarse labels, > 0: near 0 a client has one of them.
      alpha_fine: concentration over the fine labels of a coarse one, > 0.

    Source: Reddi et al., "Adaptive federated optimization", 2021, appendix "Creating a federated CIFAR-100"; the
    method is named after Li and McCallum, "Pachinko allocation", 2006.
    """
    check_alpha("alpha_coarse", alpha_coarse)
    check_alpha("alpha_fine", alpha_fine)
    (classes, left), (of_example, _) = as_classes(fine, num_clients, "fine"), as_classes(coarse, num_clients, "coarse")
    parent = np.empty(len(left), np.int64)  # the coarse class of each fine one
    parent[classes] = of_example
    children = [np.flatnonzero(parent == label) for label in range(parent.max() + 1)]
    rng = generator(seed)
    roots = rng.dirichlet(np.full(len(children), alpha_coarse, np.float64), num_clients)
    leaves = [rng.dirichlet(np.full(len(below), alpha_fine, np.float64), num_clients) for below in children]
    sizes = even(len(classes), num_clients)
    counts = np.zeros((num_clients, len(left)), np.int64)
    for client in rng.permutation(num_clients):  # in random order: the last ones take what is left
        # All coarse draws come before the fine ones: a coarse label is exhausted when it was drawn as often as it
        # has examples, whichever of its fine labels they were.
        totals = np.array([left[below].sum() for below in children])
        of_coarse = draw(rng, roots[client], totals, int(sizes[client]))
        for label in np.flatnonzero(of_coarse):
            below = children[label]
            counts[client, below] = draw(rng, leaves[label][client], left[below], int(of_coarse[label]))
        left = left - counts[client]
    return parts_of(deal(classes, counts, rng), num_clients)


def classes_per_client(labels: ArrayLike, num_clients: int, classes: int, seed: int) -> Parts:
    """Give every client exactly `classes` random classes, in sizes as even as these allow.

    A class is shared evenly by its clients; their number is in proportion to its size. With 5 of 10 classes this is
    the high heterogeneity of FAFED; with 1, the one digit per device of Fed-LAMB. `classes` is from 1 to C, the number
    of different labels; it is a `UsageError` if N · classes is less than C, so that some class would have no client, or
    the classes have too few examples for so many clients.
    """
    codes, totals = as_classes(labels, num_clients)
    minimum = -(-len(totals) // num_clients)  # fewer would leave a class without a client
    check_int("classes", classes, minimum, len(totals))
    rng = generator(seed)
    holders = _assign(_slots(totals, num_clients, num_clients * classes), num_clients, classes, rng)
    counts = np.zeros(holders.shape, np.int64)
    for label in range(len(totals)):
        clients = rng.permutation(np.flatnonzero(holders[:, label]))
        smallest_first = clients[np.argsort(counts[clients].sum(1), kind="stable")]
        counts[smallest_first, label] = even(int(totals[label]), len(clients))
    return parts_of(deal(codes, counts, rng), num_clients)


def _slots(totals: np.ndarray, num_clients: int, slots: int) -> np.ndarray:
    """Return how many clients hold each class, (C,), so that the largest share is smallest."""
    most = np.minimum(totals, num_clients)
    if most.sum() < slots:
        limit, got = most.sum() // num_clients, slots // num_clients
        raise UsageError(f"classes must be <= {limit} for {num_clients} clients of so few examples, got {got}")
    held = np.ones_like(totals)
    for _ in range(slots - len(totals)):
        held[np.argmax(np.where(held < most, totals / held, 0.0))] += 1
    return held


def _assign(held: np.ndarray, num_clients: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Return a random (N, C) mask: `classes` true per row, held[c] ≤ N in column c."""
    mask = np.zeros((num_clients, len(held)), bool)
    held = held.copy()
    for row, clients_left in enumerate(range(num_clients, 0, -1)):
        # The earliest arrivals at rates `held` are a draw without replacement with those weights; a class
        # that needs every client still to come is taken for certain, which keeps the rest solvable.
        arrival = np.where(held > 0, rng.exponential(size=len(held)) / np.maximum(held, 1), np.inf)
        arrival[held == clients_left] = -1.0
        chosen = np.argpartition(arrival, classes - 1)[:classes]
        mask[row, chosen] = True
        held[chosen] -= 1
    return mask


def shards(labels: ArrayLike, num_clients: int, shards_per_client: int, seed: int) -> Parts:
    """Sort the examples by label, cut them into N · s shards and deal s to each client.

    A client holds at most as many classes as its shards touch: about s where a class fills many shards. Examples
    of one class are shuffled before the cut. With 2 shards per client this is the non-iid MNIST of FedAvg. s is from 1
    to n // N; shards differ by one example at most, so clients by s.

    Source: McMahan et al., "Communication-efficient learning of deep networks from decentralized data", 2017.
    """
    classes, _ = as_classes(labels, num_clients)
    n = len(classes)
    check_int("shards_per_client", shards_per_client, 1, n // num_clients)
    rng = generator(seed)
    dealt = rng.permutation(np.repeat(np.arange(num_clients), shards_per_client))
    owner, shuffled = np.empty(n, np.int64), rng.permutation(n)
    owner[shuffled[np.argsort(classes[shuffled], kind="stable")]] = np.repeat(dealt, even(n, len(dealt)))
    return parts_of(owner, num_clients)


def similarity(labels: ArrayLike, num_clients: int, s: float, seed: int) -> Parts:
    """Deal s % of the examples iid, the rest sorted by label, in equal sizes.

    s is from 0 to 100. At 100 all are iid; at 0 a client holds neighbouring classes only. 95 is the low heterogeneity
    of FAFED.

    Source: Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning", 2020, section 7.
    """
    classes, _ = as_classes(labels, num_clients)
    check_number("similarity", s, 0, 100, open_high=False)
    n = len(classes)
    shuffled = generator(seed).permutation(n)
    num_iid = round(n * s / 100)
    of_iid = even(num_iid, num_clients)
    of_sorted = even(n, num_clients) - of_iid
    owner = np.empty(n, np.int64)
    owner[shuffled[:num_iid]] = np.repeat(np.arange(num_clients), of_iid)
    rest = shuffled[num_iid:]
    owner[rest[np.argsort(classes[rest], kind="stable")]] = np.repeat(np.arange(num_clients), of_sorted)
    return parts_of(owner, num_clients)


def divide_test(train_labels: ArrayLike, train_parts: Parts, test_labels: ArrayLike, seed: int) -> np.ndarray:
    """Deal the test examples to the clients by the classes that they train on.

    The test examples of a class go to the clients in proportion to how many training examples of it they hold,
    rounded by largest remainders with ties at random. A class that nobody holds goes by the clients' sizes. Every
    test example goes to one client; a small client may get none.

    Takes labels (n,) and (m,) and any partition of the n; returns the client of each test example, int32 (m,).
    """
    train, test = as_values("train_labels", train_labels), as_values("test_labels", test_labels)
    train_parts = as_parts("train_parts", train_parts, len(train))
    sizes = np.array([len(part) for part in train_parts])
    clients = np.arange(len(sizes))
    held, holders = train[np.concatenate(train_parts)], np.repeat(clients, sizes)
    rng = generator(seed)
    owners = np.empty(len(test), np.int32)
    for label in np.unique(test):
        members = rng.permutation(np.flatnonzero(test == label))
        weights = np.bincount(holders[held == label], minlength=len(sizes))
        owners[members] = np.repeat(clients, apportion(len(members), weights if weights.any() else sizes, rng))
    return owners


def iid(labels_or_n: ArrayLike | int, num_clients: int, seed: int) -> Parts:
    """Shuffle the examples and cut them into parts of equal size (the first n mod N hold one more)."""
    return _deal_at_random(generator(seed), even(_number_of_examples(labels_or_n, num_clients), num_clients))


def by_size(
    labels_or_n: ArrayLike | int, num_clients: int, *, seed: int, distribution: str = "lognormal", sigma: float = 1.0,
    exponent: float = 1.5,
) -> Parts:  # fmt: skip
    """Deal iid examples in unequal sizes: quantity skew alone.

    Every client draws a weight w and has nᵢ = 1 + (n − N) wᵢ / Σ w examples, rounded by largest remainders so that
    they sum to n. `"lognormal"`: log w ~ Normal(0, σ²). `"powerlaw"`: w is Pareto, P(w > t) = t^(−exponent) for
    t ≥ 1, so that the density falls as t^(−exponent − 1).

    `sigma` is from 0 (equal sizes) to 100, `exponent` at least 0.01; the smaller, the heavier the tail (at 1 or less
    the Pareto distribution has no mean, at 2 or less no variance).

    Source: quantity skew is a term of Kairouz et al., "Advances and open problems in federated learning", 2021,
    section 3.1.
    """
    check_choice("distribution", distribution, ("lognormal", "powerlaw"))
    n = _number_of_examples(labels_or_n, num_clients)
    rng = generator(seed)
    if distribution == "lognormal":
        check_number("sigma", sigma, 0, _MAX_SIGMA, open_high=False)
        log_weights = sigma * rng.normal(size=num_clients)
    else:
        check_number("exponent", exponent, _MIN_EXPONENT)
        log_weights = rng.exponential(size=num_clients) / exponent  # the logarithm of a Pareto variable
    return _deal_at_random(rng, 1 + apportion(n - num_clients, np.exp(log_weights - log_weights.max()), rng))


def natural(groups: ArrayLike) -> Parts:
    """Make one client per group (a writer, a role, a device), in the order of the sorted ids of the groups, (n,)."""
    ids, owner = np.unique(as_values("groups", groups), return_inverse=True)
    return parts_of(owner, len(ids))


def _number_of_examples(labels_or_n: ArrayLike | int, num_clients: int) -> int:
    n = int(labels_or_n) if isinstance(labels_or_n, int | np.integer) else len(as_values("labels", labels_or_n))
    check_int("num_clients", num_clients, 1, n)
    return n


def _deal_at_random(rng: np.random.Generator, sizes: np.ndarray) -> Parts:
    owner = np.empty(sizes.sum(), np.int64)
    owner[rng.permutation(len(owner))] = np.repeat(np.arange(len(sizes)), sizes)
    return parts_of(owner, len(sizes))


def as_classes(labels: ArrayLike, num_clients: int, name: str = "labels") -> tuple[np.ndarray, np.ndarray]:
    """Return the labels as 0 … C−1, (n,), and the number of examples of each class that occurs, (C,)."""
    array = as_values(name, labels)
    check_int("num_clients", num_clients, 1, len(array))
    _, codes, totals = np.unique(array, return_inverse=True, return_counts=True)
    return codes, totals.astype(np.int64)


def as_values(name: str, values: ArrayLike) -> np.ndarray:
    """Return `values` as an array of shape (n,), n ≥ 1."""
    array = np.asarray(values)
    if array.ndim != 1 or len(array) == 0:
        raise UsageError(f"{name} must hold one value per example, and at least one, got shape {array.shape}")
    return array


def generator(seed: int) -> np.random.Generator:
    """Return the random numbers of a partition."""
    return np.random.default_rng(check_int("seed", seed, 0, 2**63 - 1))


def check_alpha(name: str, alpha: float) -> None:
    """Check the concentration of a Dirichlet distribution."""
    check_number(name, alpha, 0, _MAX_ALPHA, open_low=True, open_high=False)


def even(n: int, parts: int) -> np.ndarray:
    """Divide n into sizes that differ by at most one, the larger ones first: int64 (parts,)."""
    return n // parts + (np.arange(parts) < n % parts)


def apportion(total: int, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Divide `total` ≥ 0 in proportion to `weights`, by largest remainders with random ties: int64 (N,).

    Weights (N,) are ≥ 0, at least one of them > 0; integers are divided exactly.
    """
    whole, rest = np.divmod(total * weights, weights.sum())
    shares = whole.astype(np.int64)
    order = rng.permutation(len(weights))
    order = order[np.argsort(-rest[order], kind="stable")]
    shares[order[: total - int(shares.sum())]] += 1
    return shares


def draw(rng: np.random.Generator, q: np.ndarray, left: np.ndarray, size: int) -> np.ndarray:
    """Count each class among `size` examples that are drawn by q, one at a time, from the `left` ones.

    Draws in bulk: an example of an exhausted class is drawn again among the other classes, which gives the same
    distribution.
    """
    taken = np.zeros_like(left)
    while (missing := size - int(taken.sum())) > 0:
        p = np.where(taken < left, q, 0.0)
        if not p.sum() > 0.0:  # q lies on exhausted classes only
            p = (left - taken).astype(np.float64)
        taken = np.minimum(taken + rng.multinomial(missing, p / p.sum()), left)
    return taken


def deal(classes: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the owner of each example, (n,), when client i takes counts[i, c] random examples of class c."""
    owner = np.empty(len(classes), np.int64)
    for label in range(counts.shape[1]):
        members = rng.permutation(np.flatnonzero(classes == label))
        owner[members] = np.repeat(np.arange(len(counts)), counts[:, label])
    return owner


def parts_of(owner: np.ndarray, num_clients: int) -> Parts:
    """Return the sorted index array of each client, from the owner of each example, (n,)."""
    order = np.argsort(owner, kind="stable").astype(np.int64)  # stable: indices stay sorted within a client
    return np.split(order, np.cumsum(np.bincount(owner, minlength=num_clients))[:-1])
