"""Parameters that stay at their client: FedBN and FedPer after their papers, nothing personal on the wire."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.models import resnet9
from fedoptax.tree import leaf_names
from laws import batches, grad_fn, start
from laws_table import ROWS, kinds_quickly
from refusals import refused
from small import small_task

RUN: dict[str, Any] = {"rounds": 4, "cohort_size": 3, "batch_size": 4, "seed": 2, "eval_every": 2}


def leaves_of(tree: Any) -> set[str]:
    return set(leaf_names(tree))


@pytest.mark.parametrize("personal", ["kernel", "bias"])
def test_it_is_fedbn_and_fedper(personal):
    """FedBN, Algorithm 1; FedPer, Algorithms 1 and 2: SGD on everything, the mean of what is not personal."""
    algorithm = fx.with_personal(fx.fedavg(0.1), keep=personal)
    x = start()
    server, clients = algorithm.init(x), [algorithm.init_client(x) for _ in batches()]
    models, weights = [x for _ in batches()], [1.0, 3.0, 2.0]
    for _ in range(3):
        server, clients, _ = fx.eager.run_round(algorithm, grad_fn, server, clients, batches(), weights)
        for i, own in enumerate(batches()):
            for batch in own:
                models[i] = jax.tree.map(lambda p, g: p - 0.1 * g, models[i], grad_fn(models[i], batch)[1])
        mean = fx.weighted_mean(models, weights)["layer"]
        shared = {name: a for name, a in mean.items() if name != personal}
        models = [{"layer": {**model["layer"], **shared}} for model in models]
    for client, model in zip(clients, models):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4),
            algorithm.client_params(algorithm.params(server), client),
            model,
        )
    np.testing.assert_array_equal(algorithm.params(server)["layer"][personal], x["layer"][personal])


@pytest.mark.parametrize("name", kinds_quickly)
def test_nothing_personal_is_sent_and_the_rest_has_its_form(name):
    inner = ROWS[name]()
    if inner.decode is not None:
        pytest.skip("its uploads are coded")
    algorithm, shared = fx.with_personal(inner, keep="*/bias"), {"layer": {"kernel": start()["layer"]["kernel"]}}
    server, client = algorithm.init(start()), algorithm.init_client(start())
    form = jax.tree.structure(server)
    for _ in range(2 * inner.exchanges):  # the first one of Mime and FAFED moves nothing
        message = algorithm.broadcast(server)
        upload, client, _ = algorithm.client_update(grad_fn, message, client, batches()[0])
        server = algorithm.server_update(server, upload, fx.Cohort(1, 2))
        assert not [path for path in leaves_of((message, upload, server.inner)) if "bias" in path]
        assert leaves_of(message) == leaves_of(inner.broadcast(inner.init(shared)))
    assert jax.tree.structure(server) == form
    moved = algorithm.client_params(algorithm.params(server), client)["layer"]["bias"]
    assert not np.allclose(moved, start()["layer"]["bias"])


def test_clients_are_evaluated_with_their_own_parameters():
    task = small_task(sizes=(7, 6, 11))
    task = replace(task, test_owners=np.arange(len(task.test["y"])) % 3)
    algorithm = fx.with_personal(fx.fedadam(0.3, 0.1), keep="out")
    result, host = (
        fx.run(task, algorithm, **RUN, client_states=place, evaluate_start=True) for place in ("device", "host")
    )
    assert result.history[0]["test_nll"] is None and result.initial["test_nll"] == host.initial["test_nll"] > 0
    total, metrics = 0.0, jax.jit(task.metrics)
    for i, rows in enumerate(np.arange(len(task.test["y"])) % 3 == k for k in range(3)):
        model = algorithm.client_params(result.params, jax.tree.map(lambda a, i=i: a[i], result.clients.tree))
        total += float(np.asarray(metrics(model, task.test)["nll"])[rows].sum())
    assert result.history[-1]["test_nll"] == pytest.approx(total / len(task.test["y"]))
    assert host.history[-1]["test_nll"] == pytest.approx(result.history[-1]["test_nll"])
    for codec in (fx.codecs.topk(1.0), fx.codecs.qsgd(8)):
        wrapped = fx.with_compression(algorithm, codec)
        close = fx.run(task, wrapped, **RUN).history[-1]["test_nll"]
        assert close == pytest.approx(result.history[-1]["test_nll"], rel=0.05)
    refused(lambda: fx.run(replace(task, test_owners=None), algorithm, **RUN), "examples of clients that train")
    refused(lambda: fx.run(task, algorithm, **RUN, personalize="1:0.1"), "personalize cannot be used with personal")
    refused(lambda: result.predict(task.test["x"]), "result has no model", "each client has its own")
    once = (fx.run(task, fx.with_personal(make(0.1), "out"), **RUN | {"rounds": 1}) for make in (fx.fedavg, fx.fednova))
    out, of_nova = (jax.tree.leaves(one.clients.tree.params["out"])[0] for one in once)
    np.testing.assert_allclose(out, of_nova, rtol=1e-5)  # by the same training
    bytes_up = fx.nbytes({name: a for name, a in result.params.items() if name != "out"})
    assert result.history[-1]["bytes_up"] == 3 * bytes_up


def test_patterns_and_refusals():
    params = jax.eval_shape(resnet9((32, 32, 3), 10).init, jax.random.key(0))
    for keep, why in ((["norm*", "haed"], "pattern 'haed' matches none of"), (lambda name: True, "some but not all")):
        refused(lambda: fx.with_personal(fx.fedavg(0.1), keep).init(params), why)  # noqa: B023
    coded = fx.with_compression(fx.fedavg(0.1), fx.codecs.sign())
    refused(lambda: fx.with_personal(coded, keep="x"), "private or code its uploads")
    refused(lambda: fx.with_prox(fx.with_personal(fx.fedavg(0.1), keep="x"), 0.1), "no personal parameters yet")
    for keep in ("norm*", ["norm*"], lambda name: "norm" in name):
        personal = fx.with_personal(fx.fedavg(0.1), keep=keep).init(params).initial
        assert leaves_of(personal) == {path for path in leaves_of(params) if "norm" in path} != set()
