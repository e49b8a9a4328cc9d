"""Parameters that stay at their client: norms (FedBN, Li et al. 2021), heads (FedPer, Arivazhagan et al. 2019).

A client runs the algorithm on all parameters. Only the shared ones are sent: trees with `None` for a personal leaf.
"""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import keystr, tree_leaves_with_path, tree_map_with_path

from fedoptax.algorithm import ClientResult, Cohort, FedAlgorithm, GradFn, Minibatches, Tree, check_algorithm
from fedoptax.errors import UsageError, check_type, shorten
from fedoptax.tree import add_scaled, leaf_names
from fedoptax.wrappers.uploads import upload_form


class PersonalServer(NamedTuple):
    """The server: the algorithm's state of the shared parameters, and the initial personal ones."""

    inner: Tree
    initial: Tree


class PersonalClient(NamedTuple):
    """A client: the algorithm's state, its personal parameters, and the server state of these parameters, or ()."""

    inner: Tree
    params: Tree
    server: Tree


def _matches(pattern: str | Callable[[str], bool], name: str) -> bool:
    if callable(pattern):
        return bool(pattern(name))
    return any(fnmatchcase(part, pattern) for part in (name, *name.split("/")))


def with_personal(algorithm: FedAlgorithm, keep: str | Sequence[str] | Callable[[str], bool]) -> FedAlgorithm:
    """`algorithm` with parameters that stay at their client: never sent, averaged, or seen by the server's optimizer.

    A client trains them together with the shared ones, by the algorithm's local rule, and they are part of its state.
    They start as the initial parameters are, also at a client that joins later. After a round they are what local
    training made of them. What else an algorithm broadcasts per parameter (SCAFFOLD's control, FAFED's moments) is for
    a personal one what a federation of this client alone would have. `params` of the server are the shared parameters
    beside the initial personal ones; `client_params` are those of a client. A schedule that the server evaluates
    (STEM, FAFED, FedCM, FedAdamW) counts the rounds of the client for its personal parameters. Bias correction counts
    the federation's steps (FedAdamW, Lookahead; FAFED has none), so a client that joins late takes large first steps.

    Privacy and compression go outside: `with_privacy(with_personal(algorithm, keep), …)`. A norm of all that a client
    trains, as `fedexp`, `delta_sgd` and FAFED with one v for all take it, is taken of personal parameters, too.

    Args:
      algorithm: any algorithm that is neither private nor compressed.
      keep: a pattern or several (`"norm*"`, `"*/bias"`), matched against a parameter's whole path, such as
        `block1/norm1/scale`, and each of its parts; or a function of the path.

    Raises:
      UsageError: `keep` is none of these, a pattern matches no parameter, or all parameters are kept; or uploads are
        coded or private.

    Example:
      >>> import jax, fedoptax as fx
      >>> algorithm = fx.with_personal(fx.fedavg(0.1), keep="head")
      >>> params = {"body": jax.numpy.ones(3), "head": jax.numpy.ones(2)}
      >>> fx.nbytes(algorithm.broadcast(algorithm.init(params))), algorithm.init_client(params).params
      (12, {'body': None, 'head': Array([1., 1.], dtype=float32)})
    """
    check_algorithm(algorithm)
    if algorithm.decode is not None or algorithm.epsilon is not None:
        raise UsageError("algorithm must not be private or code its uploads (as fedlion): wrap with_personal's result")
    check_type("keep", keep, str | Sequence | Callable)
    patterns = [keep] if isinstance(keep, str) or callable(keep) else keep
    for pattern in patterns:
        check_type("keep", pattern, str | Callable)

    def split(params: Tree) -> tuple[Tree, Tree]:
        leaves, structure = jax.tree.flatten(params)
        names = leaf_names(params)
        matched = [[_matches(pattern, name) for name in names] for pattern in patterns]
        for pattern, found in zip(patterns, matched):
            if isinstance(pattern, str) and not any(found):
                raise UsageError(f"personal pattern '{pattern}' matches none of {shorten(', '.join(names))}")
        chosen = [any(found) for found in zip(*matched)]
        if all(chosen) or not any(chosen):
            raise UsageError(f"personal parameters must be some but not all, got {sum(chosen)} of {len(names)}")
        halves = ([a if c == want else None for a, c in zip(leaves, chosen)] for want in (False, True))
        shared, personal = (jax.tree.unflatten(structure, half) for half in halves)
        return shared, personal

    def init(params: Tree) -> PersonalServer:
        shared, personal = split(params)
        return PersonalServer(algorithm.init(shared), personal)

    def init_client(params: Tree) -> PersonalClient:
        _, personal = split(params)
        form = jax.eval_shape(lambda p: algorithm.broadcast(algorithm.init(p)), personal)
        if "params" not in getattr(form, "_fields", ()):
            raise UsageError("algorithm must send parameters to its clients, in a field `params` of its message")
        upload = upload_form(algorithm, personal)
        more = form._replace(params=()), upload._replace(delta=()) if hasattr(upload, "delta") else upload
        has_server = not hasattr(upload, "delta") or bool(jax.tree.leaves(more))
        personal = jax.tree.map(jnp.asarray, personal)
        server = algorithm.init(personal) if has_server else ()
        return PersonalClient(algorithm.init_client(params), personal, server)

    def client_update(grad_fn: GradFn, message: Tree, client: PersonalClient, batches: Minibatches) -> ClientResult:
        has_server = bool(jax.tree.leaves(client.server))
        personal = (algorithm.broadcast(client.server) if has_server else message)._replace(params=client.params)
        upload, inner, loss = algorithm.client_update(grad_fn, join(message, personal), client.inner, batches)
        shared, rest = (part_of(upload, upload_form(algorithm, part)) for part in (message.params, client.params))
        server = algorithm.server_update(client.server, rest, Cohort(1, 1)) if has_server else ()
        scale = getattr(rest, "length", 1.0)  # by which FedNova divides Δ
        params = add_scaled(client.params, scale, rest.delta) if hasattr(rest, "delta") else algorithm.params(server)
        return shared, PersonalClient(inner, params, server), loss

    def server_update(server: PersonalServer, mean: Tree, cohort: Cohort) -> PersonalServer:
        return server._replace(inner=algorithm.server_update(server.inner, mean, cohort))

    return algorithm._replace(
        init=init, init_client=init_client, broadcast=lambda server: algorithm.broadcast(server.inner),
        client_update=client_update, server_update=server_update,
        params=lambda server: join(algorithm.params(server.inner), server.initial),
        client_params=lambda params, client: join(client.params, params),
    )  # fmt: skip


def join(shared: Tree, personal: Tree) -> Tree:
    """Return one tree of two with `None` in the places of each other's leaves; where both have a leaf, the former's."""
    return jax.tree.map(lambda a, b: b if a is None else a, shared, personal, is_leaf=lambda node: node is None)


def part_of(tree: Tree, form: Tree) -> Tree:
    """Return a tree with only the leaves that `form` has, by path."""
    paths = {keystr(path) for path, _ in tree_leaves_with_path(form)}
    return tree_map_with_path(lambda path, a: a if keystr(path) in paths else None, tree)
