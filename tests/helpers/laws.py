"""The laws of every algorithm. Each is a function of a factory; it passes or raises an AssertionError.

To test your own algorithm, give its constructor with values for the arguments that have no default:

    from functools import partial
    from laws import LAWS
    for law in LAWS:
        law(partial(my_algorithm, lr=0.1))

The factory's float keywords are taken for its hyper-parameters. Laws of one factory object share compiled programs.
"""

import inspect
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedoptax as fx
from fedoptax.algorithm import Batches, BatchList, Cohort, FedAlgorithm, decoded
from fedoptax.engine.data import DeviceData, device_data
from fedoptax.engine.faults import Faults
from fedoptax.engine.plan import RunOptions, make_plan
from fedoptax.engine.program import Fixed, program

Factory = Callable[..., FedAlgorithm]

SIZES, COHORT, BATCH, ROUNDS, SEED = (3, 5, 2, 4), 3, 2, 3, 7
START = {"layer": {"kernel": np.array([[1.0, -0.5], [0.25, 2.0]]), "bias": np.zeros(2)}}
STEPS = (2, 1, 3)
"""Local steps of the three clients of the rounds that need no engine."""


def residual_loss(params: Any, batch: Any) -> jax.Array:
    """½‖xK + b − y‖² by example."""
    dtype = params["layer"]["kernel"].dtype
    gap = batch["x"].astype(dtype) @ params["layer"]["kernel"] + params["layer"]["bias"] - batch["y"].astype(dtype)
    return 0.5 * jnp.sum(gap * gap, axis=-1)


def engine_loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
    """The mean over real examples; what stands in the padded places is the field `junk`."""
    mask = batch["mask"]
    x = jnp.where(mask[:, None], batch["x"], batch["junk"])
    return fx.masked_mean(residual_loss(params, {"x": x, "y": batch["y"]}), {"mask": mask})


def start(dtype: str = "float32") -> Any:
    return jax.tree.map(lambda a: jnp.asarray(a, dtype), START)


def _examples(size: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    x = rng.normal(size=(size, 2)) + rng.normal(size=2)
    y = x @ rng.normal(size=(2, 2)) + rng.normal(size=2)
    return {"x": x.astype("f4"), "y": y.astype("f4"), "junk": np.zeros((size, 2), "f4")}


def _task() -> fx.Task:
    rng = np.random.default_rng(SEED)
    clients = fx.FederatedData.from_clients([_examples(size, rng) for size in SIZES])
    return fx.Task("laws", lambda key: start(), engine_loss, lambda p, b: {}, clients, label=None)


TASK = _task()
grad_fn = jax.jit(jax.value_and_grad(lambda params, batch: jnp.mean(residual_loss(params, batch))))


@lru_cache
def batches(dtype: str = "float32") -> list[BatchList]:
    """The minibatches and keys of three clients, in lists, without padding."""
    rng = np.random.default_rng(SEED + 1)
    with jax.ensure_compile_time_eval():  # also when first asked for inside a trace
        own = [
            [{n: jnp.asarray(a, dtype) for n, a in _examples(BATCH, rng).items()} for _ in range(count)]
            for count in STEPS
        ]
        return [BatchList(made, jax.random.key(SEED + count)) for made, count in zip(own, STEPS)]


@lru_cache(maxsize=64)
def algorithm_of(make: Factory) -> FedAlgorithm:
    """One algorithm per factory: compiled programs are kept by it."""
    return make()


def run(algorithm: FedAlgorithm, rounds: int = ROUNDS, client_loop: str = "loop", **options: Any) -> fx.RunResult:
    options = {"cohort_size": COHORT, "batch_size": BATCH, "seed": SEED, "progress": False} | options
    return fx.run(TASK, algorithm, rounds=rounds, client_loop=client_loop, **options)


@lru_cache(maxsize=8)
def whole(make: Factory, client_loop: str = "loop", engine: str = "compiled", place: str = "device") -> fx.RunResult:
    """A run of all rounds."""
    return run(algorithm_of(make), client_loop=client_loop, engine=engine, client_states=place)


def places(algorithm: FedAlgorithm) -> tuple[str, ...]:
    """Where the clients' states may live; clients without states need no host."""
    return ("device", "host") if jax.tree.leaves(algorithm.init_client(start())) else ("device",)


def eager_rounds(
    algorithm: FedAlgorithm,
    order: Sequence[int] = (0, 1, 2),
    weights: Sequence[float] | None = None,
    own: Sequence[list[Any]] | None = None,
    rounds: int = 2,
    dtype: str = "float32",
    states: tuple[Any, list[Any]] | None = None,
) -> tuple[Any, list[Any]]:
    """Rounds in plain Python with the three clients in some order; states are in the clients' own order."""
    params, own = start(dtype), batches(dtype) if own is None else own
    server, clients = states or (algorithm.init(params), [algorithm.init_client(params) for _ in STEPS])
    w = None if weights is None else [weights[i] for i in order]
    for _ in range(rounds):
        server, new, _ = fx.eager.run_round(
            algorithm, grad_fn, server, [clients[i] for i in order], [own[i] for i in order], w, len(SIZES)
        )
        for i, state in zip(order, new):
            clients[i] = state
    return server, clients


def equal(a: Any, b: Any) -> None:
    """Bit for bit."""
    _compare(a, b, lambda x, y: np.testing.assert_array_equal(x, y, strict=True))


def close(a: Any, b: Any, rtol: float = 2e-4, atol: float = 2e-6) -> None:
    """To the tolerance of float32."""
    _compare(a, b, lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol))


def _compare(a: Any, b: Any, check: Callable[[np.ndarray, np.ndarray], None]) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b), "the structures differ"
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
        check(np.asarray(x), np.asarray(y))


def hyperparameters(make: Factory) -> dict[str, float]:
    """The factory's keywords that are floats by default."""
    found = {n: p.default for n, p in inspect.signature(make).parameters.items() if isinstance(p.default, float)}
    assert found, "the factory has no float keyword; give functools.partial(constructor, lr=0.1, ...)"
    return found


def reduces_to_sgd(make: Factory, lr: float = 0.1) -> None:
    """One client, one step a round: x ← x − lr g(x). For algorithms without adaptivity or momentum, built with `lr`."""
    algorithm, batch = make(), batches()[0][0]
    x = start()
    server, clients = algorithm.init(x), [algorithm.init_client(x)]
    for _ in range(4):
        x = jax.tree.map(lambda p, g: p - lr * g, x, grad_fn(x, batch)[1])
        server, clients, _ = fx.eager.run_round(algorithm, grad_fn, server, clients, [[batch]])
        close(algorithm.params(server), x, 1e-5)


def order_does_not_matter(make: Factory) -> None:
    """Any order of the cohort gives the same states, to float tolerance."""
    algorithm = make()
    for weights in (None, [1.0, 3.0, 2.0]):
        want = eager_rounds(algorithm, weights=weights)
        for order in ((2, 1, 0), (1, 2, 0)):
            close(eager_rounds(algorithm, order, weights), want)


def weight_zero_counts_for_nothing(make: Factory) -> None:
    """What a client of weight zero uploads changes no bit of the server, even when it is NaN."""
    algorithm, weights = make(), [1.0, 3.0, 0.0]
    own = batches()[2]
    nan = BatchList([{name: jnp.full_like(a, jnp.nan) for name, a in batch.items()} for batch in own], own.key)
    server, _ = eager_rounds(algorithm, weights=weights)
    with_nan, _ = eager_rounds(algorithm, weights=weights, own=[*batches()[:2], nan])
    equal(with_nan, server)
    params = start()
    server, client = algorithm.init(params), algorithm.init_client(params)
    message = algorithm.broadcast(server)
    sent = [algorithm.client_update(grad_fn, message, client, own)[0] for own in (*batches()[:2], nan)]
    uploads = [decoded(algorithm, upload) for upload in sent]
    cohort = Cohort(3, 4)
    without = algorithm.server_update(server, fx.weighted_mean(uploads[:2], weights[:2]), cohort)
    equal(algorithm.server_update(server, fx.weighted_mean(uploads, weights), cohort), without)


def padding_is_inert(make: Factory) -> None:
    """Compiled rounds give the same bits whatever stands in the padded places, and in clients that take no part."""
    algorithm = algorithm_of(make)
    options = RunOptions(cohort_size=COHORT, batch_size=BATCH, client_loop="loop")
    built = program(TASK, Fixed(algorithm), make_plan(options, TASK, algorithm))
    data, key, n = device_data(TASK), jax.random.key(SEED), partial(jnp.asarray, dtype=jnp.int32)

    def advance(data: DeviceData, rounds: int) -> Any:
        server, client = built.start({}, key)
        clients = jax.tree.map(lambda a: jnp.repeat(a[None], len(SIZES), axis=0), client)
        numbers = n(0), n(rounds), n([1, 0, 1]), n(rounds)
        return jax.device_get(
            built.advance({}, server, clients, data, key, *numbers, Faults().rates(np.ones(len(SIZES))), None)
        )

    junk = np.where(np.arange(sum(SIZES))[:, None] % 2, 1e30, -3.0) * np.ones(2)
    filled = data._replace(examples={**data.examples, "junk": jnp.asarray(junk, jnp.float32)})
    equal(advance(filled, 3), advance(data, 3))
    cohort = set(np.asarray(fx.engine.sampling.sample_cohort(key, 0, len(SIZES), COHORT)).tolist())
    absent = np.repeat([i not in cohort for i in range(len(SIZES))], SIZES)
    holes = {name: jnp.where(jnp.asarray(absent)[:, None], jnp.nan, a) for name, a in data.examples.items()}
    equal(advance(data._replace(examples=holes), 1), advance(data, 1))


def dtypes_stay(make: Factory) -> None:
    """Parameters of a dtype give messages, uploads and states of that dtype, also under strict promotion."""
    algorithm = make()
    for dtype in ("float32", "bfloat16"):
        for promotion in ("standard", "strict"):
            with jax.numpy_dtype_promotion(promotion):
                _forms_stay(algorithm, dtype)
        with jax.numpy_dtype_promotion("strict"):
            server, clients = eager_rounds(algorithm, dtype=dtype)
        for leaf in jax.tree.leaves((server, clients)):
            assert np.isfinite(np.asarray(leaf, np.float32)).all()
            assert leaf.dtype == dtype or jnp.issubdtype(leaf.dtype, jnp.integer), f"{leaf.dtype} in a {dtype} run"


def _forms_stay(algorithm: FedAlgorithm, dtype: str) -> None:
    own = batches(dtype)[0][0]

    def round_(params: Any, count: jax.Array) -> Any:
        server, client = algorithm.init(params), algorithm.init_client(params)
        message = algorithm.broadcast(server)
        minibatches = Batches(count, lambda k: own, jax.random.key(0))
        upload, new_client, _ = algorithm.client_update(grad_fn, message, client, minibatches)
        upload = decoded(algorithm, upload)
        new_server = algorithm.server_update(server, upload, Cohort(3, 4))
        return (server, client), (new_server, new_client), (message, upload, algorithm.params(new_server))

    before, after, sent = jax.eval_shape(round_, start(dtype), jnp.int32(2))
    assert jax.tree.structure(before) == jax.tree.structure(after), "a state changes its structure"
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), f"a state goes from {a.dtype}{a.shape} to {b.dtype}{b.shape}"
    for leaf in jax.tree.leaves((before, sent)):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.shape:  # a scheduled learning rate may travel in float32
            assert leaf.dtype == dtype, f"{leaf.dtype} in a {dtype} run"


@lru_cache(maxsize=4)
def traced_round(make: Factory) -> tuple[Callable[..., Any], list[int]]:
    """A compiled round of (hyper-parameters, server, clients), and a list with one entry per trace."""
    traces: list[int] = []

    def round_(hypers: dict[str, Any], server: Any, clients: list[Any]) -> Any:
        traces.append(1)
        return fx.eager.run_round(make(**hypers), grad_fn, server, clients, batches(), None, len(SIZES))[:2]

    return jax.jit(round_), traces


def _traced(make: Factory, hypers: dict[str, float], rounds: int) -> tuple[Any, int]:
    round_, traces = traced_round(make)
    before, values = len(traces), {name: jnp.float32(value) for name, value in hypers.items()}
    algorithm, params = make(**hypers), start()
    states = jax.tree.map(jnp.asarray, (algorithm.init(params), [algorithm.init_client(params) for _ in STEPS]))
    for _ in range(rounds):
        states = round_(values, *states)
    return states, len(traces) - before


def compiles_once(make: Factory) -> None:
    """The second and the third round reuse the program of the first, and so do other hyper-parameters."""
    hypers = hyperparameters(make)
    _, traces = _traced(make, hypers, 3)
    _, more = _traced(make, _other(hypers), 1)
    assert traces <= 1 and more == 0, f"traced {traces} times for three rounds, {more} times for another point"


def hyperparameters_can_be_traced(make: Factory) -> None:
    """Every float hyper-parameter may be a traced value, and then has the effect it has as a constant."""
    hypers = _other(hyperparameters(make))
    got, _ = _traced(make, hypers, 2)
    close(got, eager_rounds(make(**hypers)))


def _other(hypers: dict[str, float]) -> dict[str, float]:
    return {name: 0.9 * value for name, value in hypers.items()}


def interrupted_equals_whole(make: Factory) -> None:
    """Stopped after every round and continued from disk: the same bits, with states on the device or on the host."""
    algorithm = algorithm_of(make)
    for place in places(algorithm):
        want = whole(make, place=place)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            got = run(algorithm, 1, out=out, client_states=place)
            for rounds in range(2, ROUNDS + 1):
                got = run(algorithm, rounds, resume_from=out, client_states=place)
        equal((got.params, got.state, _clients(got)), (want.params, want.state, _clients(want)))
        assert got.history.column("train_loss") == want.history.column("train_loss")


def continues_in_another_process(make: Factory) -> None:
    """A new instance of the algorithm continues from the states alone: nothing is remembered anywhere else."""
    want = eager_rounds(make(), rounds=4)
    states = jax.tree.map(np.array, eager_rounds(make(), rounds=2))
    equal(eager_rounds(make(), rounds=2, states=jax.tree.map(jnp.asarray, states)), want)


def _clients(result: fx.RunResult) -> Any:
    states: Any = result.clients
    return states.tree if hasattr(states, "tree") else states.of(np.arange(len(SIZES)))


def same_key_same_result(make: Factory) -> None:
    """A client's random numbers come from its key alone: the same key gives the same bits, in a new instance too."""

    def results() -> list[Any]:
        algorithm, params = make(), start()
        message, client = algorithm.broadcast(algorithm.init(params)), algorithm.init_client(params)
        return [algorithm.client_update(grad_fn, message, client, own) for own in batches()]

    equal(results(), results())


def engines_agree(make: Factory) -> None:
    """One client after another, all at once, with states on the host, and in plain Python: the same states."""
    want = whole(make)
    others = [whole(make, client_loop="vmap"), whole(make, engine="eager")]
    for other in others + [whole(make, place=place) for place in places(algorithm_of(make))[1:]]:
        close((other.params, other.state, _clients(other)), (want.params, want.state, _clients(want)))
        loss, other_loss = want.history.column("train_loss"), other.history.column("train_loss")
        np.testing.assert_allclose(np.array(other_loss, float), np.array(loss, float), rtol=1e-4)


def bytes_are_what_is_sent(make: Factory) -> None:
    """The bytes of every row of a run are those of the arrays that `broadcast` and `client_update` return."""
    algorithm, params = algorithm_of(make), start()
    server, clients = algorithm.init(params), [algorithm.init_client(params) for _ in STEPS]
    for row in whole(make).history:
        message = algorithm.broadcast(server)
        uploads = [algorithm.client_update(grad_fn, message, c, own)[0] for c, own in zip(clients, batches())]
        assert row["bytes_down"] == COHORT * fx.nbytes(jax.device_get(message)), "bytes down"
        assert row["bytes_up"] == sum(fx.nbytes(jax.device_get(upload)) for upload in uploads), "bytes up"
        server, clients, _ = fx.eager.run_round(algorithm, grad_fn, server, clients, batches(), None, len(SIZES))


LAWS: tuple[Callable[[Factory], None], ...] = (
    order_does_not_matter, weight_zero_counts_for_nothing, padding_is_inert, dtypes_stay, compiles_once,
    hyperparameters_can_be_traced, same_key_same_result, engines_agree, interrupted_equals_whole,
    continues_in_another_process, bytes_are_what_is_sent,
)  # fmt: skip
"""All laws that hold for every algorithm; `reduces_to_sgd` is for some."""

__all__ = ["LAWS", "Factory", "reduces_to_sgd", *(law.__name__ for law in LAWS)]
