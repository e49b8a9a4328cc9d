"""Secure aggregation: the server of a deployment learns the sum of a round's uploads, but no upload.

Bonawitz et al. 2017, *Practical Secure Aggregation for Privacy-Preserving Machine Learning*, Figure 4, against a server
that is honest but curious; it is SecAgg+ (Bell et al. 2020) in which all members of a cohort are neighbours. A round is
four requests to each node, one after another; whoever fails in one is not asked again in the round:

- `keys`: the node makes two key pairs, one for masks and one for encryption, and sends the public halves.
- `shares`: it draws a seed and splits it, and its private key for masks, by Shamir's scheme; to each member, itself
  too, it sends a share of both, encrypted.
- `upload`: it trains and sends its fixed-point numbers (`SecureMean`) plus the mask of its seed, plus or minus a mask
  for each other member, modulo 2³². The latter cancel in the sum.
- `unmask`: it sends its shares of the seeds of those whose upload arrived, and of the keys of those whose did not.

A request that comes again is answered as before, but with no other contents than the first time.
Key agreement, encryption and shares are Flower's own. Masks are not: its generator has 32 bits of seed (see LOG.md).
"""

import hashlib
import os
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat, share_keys_plaintext_separate
from flwr.supercore.primitives import asymmetric
from jax.flatten_util import ravel_pytree

from fedoptax.algorithm import Tree, accumulate_result, decoded
from fedoptax.deploy.client import Client
from fedoptax.deploy.orders import Order, digest_of
from fedoptax.deploy.rounds import Limits, NoQuorum, RoundReport
from fedoptax.deploy.server import RawReply, Reply, check_count
from fedoptax.deploy.wire import REASON, WireArray, WireError, pack, shown, unpack
from fedoptax.engine.aggregation import LEVELS, SecureMean, Sent
from fedoptax.engine.plan import Plan
from fedoptax.engine.round import all_finite

PUBLIC_KEY, CIPHERTEXT, SEED_SHARE, KEY_SHARE = 215, 612, 52, 324  # bytes
PAIRS = ("mask", "encryption")
STAGES: dict[str, tuple[str, ...]] = {
    "keys": (),
    "shares": ("members", "mask-keys", "encryption-keys"),
    "upload": ("members", "ciphertexts", "weight"),
    "unmask": ("members",),
}
"""The requests of a round in their order, and what comes with each."""
FALSE_SUM = "secure aggregation: a sum that no honest nodes make, so a node has lied"
Numbers = dict[str, Any]
Ask = Callable[[Sequence[int], Tree, Callable[[int], Numbers], Callable[[RawReply], Reply]], RoundReport]
"""`(members, message, more, check) -> report`: one request, with `more(i)` for partition i beside its order."""


def threshold(cohort_size: int, limits: Limits) -> int:
    """Return how many nodes must stay to the end: the quorum, more than half, and never fewer than three."""
    return max(limits.needed(cohort_size), cohort_size // 2 + 1, SecureMean.least)


def answer(
    client: Client,
    plan: tuple[SecureMean, int],
    arrays: Mapping[str, WireArray],
    asked: Numbers,
    kept: Numbers,
    root: Path,
) -> RawReply:
    """Answer a node's request.

    Each but the first is answered once in a round, or again with the same contents: a server that had both shares of a
    node, or two uploads under one mask, would see the upload.

    Args:
      client: who answers.
      plan: the coding, and the `threshold`.
      arrays: the algorithm's message, in `upload`.
      asked: the order, with `stage` and what belongs to it.
      kept: what the node remembers of the round, plain values; changed here.
      root: the node's folder for states.

    Raises:
      WireError: the request is not what the round has come to, or the upload is not finite.
    """
    order, stage, own = Order.read(asked), asked.get("stage"), client.partition
    if stage not in STAGES:
        raise WireError(f"stage: {shown(stage)} instead of {', '.join(STAGES)}")
    if missing := [name for name in STAGES[stage] if name not in asked]:
        raise WireError(f"stage: {stage} without {', '.join(missing)}")
    if stage == "keys":
        if kept.get("round") != order.round:
            kept.clear()
            kept |= {name: asymmetric.private_key_to_bytes(asymmetric.generate_key_pairs()[0]) for name in PAIRS}
            kept["round"] = order.round
        public = {name: asymmetric.bytes_to_private_key(kept[name]).public_key() for name in PAIRS}
        arrays = pack({name: _array(asymmetric.public_key_to_bytes(key)) for name, key in public.items()})
        return RawReply(arrays, {"num-examples": len(next(iter(client.examples().values())))})
    content = {name: value for name, value in asked.items() if name not in ("number", "signature")}
    digest = hashlib.sha256(f"{sorted(content.items())} {digest_of(arrays)}".encode()).digest()
    before = list(STAGES)[list(STAGES).index(stage) - 1]
    is_due = kept.get("round") == order.round and (before == "keys" or f"asked-{before}" in kept)
    if not is_due or kept.get(f"asked-{stage}", digest) != digest:
        raise WireError(f"stage: {stage} of round {order.round}, which is not due or was answered already")
    coding, least = plan
    members = asked["members"]
    if own not in members or len(members) < least or not set(members) <= set(kept.get("members") or members):
        raise WireError(f"members: {shown(members)} instead of {least} or more, partition {own} among them")
    kept[f"asked-{stage}"] = digest
    if stage == "shares":
        kept |= {"seed": os.urandom(32)} | {name: asked[name] for name in ("members", "mask-keys", "encryption-keys")}
        of_seed, of_key = (create_shares(kept[name], least, len(members)) for name in ("seed", "mask"))
        texts = [share_keys_plaintext_concat(own, *more) for more in zip(members, of_seed, of_key)]
        pairs = zip(kept["encryption-keys"], texts, strict=True)
        ciphertexts = [_array(encrypt(_agree(kept["encryption"], key), text)) for key, text in pairs]
        return RawReply(pack({"ciphertexts": np.stack(ciphertexts)}), {})
    if stage == "upload":
        upload, numbers = client.compute(arrays, order, root)
        upload = decoded(client.algorithm, jax.tree.map(jnp.asarray, upload))
        sent = Sent(upload, jnp.asarray(numbers["train-loss"], float))
        if not all_finite(sent):
            raise WireError("upload: NaN or infinity")
        coded = np.asarray(ravel_pytree(coding.encode(jnp.asarray(asked["weight"], float), sent))[0])
        keys = dict(zip(kept["members"], kept["mask-keys"]))
        masks = (_pair_mask(own, i, kept["mask"], keys[i], coded.size) for i in members if i != own)
        masked = sum(masks, coded.view(np.uint32) + _mask(kept["seed"], coded.size))
        kept |= {"uploading": members, "ciphertexts": asked["ciphertexts"]}
        return RawReply(pack({"masked": masked}), {"state-lost": numbers["state-lost"]})
    keys = dict(zip(kept["members"], kept["encryption-keys"]))
    shares = {
        i: _decrypt_shares(_agree(kept["encryption"], keys[i]), ciphertext, i, own)
        for i, ciphertext in zip(kept["uploading"], kept["ciphertexts"], strict=True)
    }
    seeds = [seed for i, (seed, _) in shares.items() if i in members]
    private = [key for i, (_, key) in shares.items() if i not in members]
    return RawReply(pack({"seeds": _stack(seeds, SEED_SHARE), "keys": _stack(private, KEY_SHARE)}), {})


def gather_sum(
    ask: Ask, cohort: Sequence[int], message: Tree, form: Sent, plan: Plan, least: int, max_examples: int
) -> RoundReport:
    """Collect the mean of a cohort's uploads; the report has it as `mean`, and replies without uploads.

    Args:
      ask: makes a request.
      cohort: who is asked.
      message: the algorithm's, as NumPy arrays.
      form: of what a client sends, decoded, as structs.
      plan: of the round.
      least: the `threshold`.
      max_examples: the most that is believed of a node.

    Raises:
      NoQuorum: fewer than `least` nodes answered a request, or what they sent opens no sum.
    """
    report, coding = RoundReport(), plan.aggregate
    assert isinstance(coding, SecureMean)

    def request(stage: str, members: Sequence[int], wanted: Tree, more: Any = lambda i: {}, message: Tree = ()) -> Any:
        def check(raw: RawReply) -> Reply:
            if raw.error is not None:
                raise WireError(shown(raw.error, REASON))
            count = check_count(raw.numbers, max_examples) if stage == "keys" else 0
            reply = unpack(raw.arrays, wanted)
            return Reply(_check_keys(reply) if stage == "keys" else reply, 0.0, count)

        try:
            found = ask(members, message, lambda i: {"stage": stage, "members": list(members)} | more(i), check)
        except NoQuorum as error:
            raise NoQuorum(f"secure aggregation, {stage}: {error}") from error
        report.lost += found.lost
        report.faults += [(i, node, f"{stage}: {reason}") for i, node, reason in found.faults]
        report.bytes_down, report.bytes_up = report.bytes_down + found.bytes_down, report.bytes_up + found.bytes_up
        report.senders, report.sent = found.senders, found.sent if stage == "upload" else report.sent
        return found.replies

    keys = request("keys", cohort, {name: _bytes(PUBLIC_KEY) for name in PAIRS})
    public = {f"{name}-keys": [reply.upload[name].tobytes() for reply in keys.values()] for name in PAIRS}
    encrypted = request("shares", list(keys), {"ciphertexts": _bytes(len(keys), CIPHERTEXT)}, lambda i: public)
    sizes = jnp.asarray([reply.examples if plan.weighting == "examples" else 1 for reply in keys.values()], float)
    weights, places = sizes / jnp.sum(sizes), {i: place for place, i in enumerate(keys)}

    def deliver(i: int) -> Numbers:
        ciphertexts = [reply.upload["ciphertexts"][places[i]].tobytes() for reply in encrypted.values()]
        return {"ciphertexts": ciphertexts, "weight": float(weights[places[i]])}

    empty, unravel = ravel_pytree(coding.zero(form))
    masked = {"masked": jax.ShapeDtypeStruct(empty.shape, np.uint32)}
    uploads = request("upload", list(encrypted), masked, deliver, message)
    lost = [i for i in encrypted if i not in uploads]
    wanted = {"seeds": _bytes(len(uploads), SEED_SHARE), "keys": _bytes(len(lost), KEY_SHARE)}
    shares = [reply.upload for reply in request("unmask", list(uploads), wanted).values()]
    total = np.sum([reply.upload["masked"] for reply in uploads.values()], axis=0, dtype=np.uint32)
    try:
        for place in range(len(uploads)):
            total -= _mask(_combine(of["seeds"][place] for of in shares), total.size)
        for place, i in enumerate(lost):
            private = _combine(of["keys"][place] for of in shares)
            for j in uploads:
                total += _pair_mask(i, j, private, public["mask-keys"][places[j]], total.size)
    except (ValueError, IndexError) as error:
        raise NoQuorum("secure aggregation, unmask: shares do not fit together, so a node has lied") from error
    weight = jnp.sum(weights[np.asarray([places[i] for i in uploads])])
    largest = np.max(np.abs(total.view(np.int32).astype(np.int64)), initial=0)
    if largest > float(weight) * LEVELS + 256 * len(uploads):  # as much as float32 rounds of each
        share = f"{largest / LEVELS:.3g} of the range instead of at most {float(weight):.3g}"
        raise NoQuorum(f"{FALSE_SUM} ({share})")
    mean = accumulate_result(coding.divide(unravel(jnp.asarray(total.view(np.int32))), weight, form), form)
    report.mean = mean.upload, float(mean.loss)
    report.replies = {i: Reply((), 0.0, keys[i].examples) for i in uploads}
    return report


def _check_keys(keys: Tree) -> Tree:
    for name, key in keys.items():
        try:
            is_on_curve = asymmetric.bytes_to_public_key(key.tobytes()).curve.name == "secp384r1"
        except Exception as error:  # whatever a parser of untrusted bytes raises
            raise WireError(f"array '{name}': no public key") from error
        if not is_on_curve:
            raise WireError(f"array '{name}': a key of another curve than secp384r1")
    return keys


def _decrypt_shares(key: bytes, ciphertext: bytes, sender: int, own: int) -> tuple[bytes, bytes]:
    """Return the shares of the sender's seed and key; zeros, which are no share, if the ciphertext is not sound."""
    try:
        *way, seed, private = share_keys_plaintext_separate(decrypt(key, ciphertext))
    except InvalidToken:
        way, seed, private = [], b"", b""
    is_sound = (way, len(seed), len(private)) == ([sender, own], SEED_SHARE, KEY_SHARE)
    return (seed, private) if is_sound else (bytes(SEED_SHARE), bytes(KEY_SHARE))


def _combine(shares: Iterable[np.ndarray]) -> bytes:
    return combine_shares([share.tobytes() for share in shares if share.any()])


def _agree(private: bytes, public: bytes) -> bytes:
    return generate_shared_key(asymmetric.bytes_to_private_key(private), asymmetric.bytes_to_public_key(public))


def _mask(key: bytes, size: int) -> np.ndarray:
    """Return uint32 (size,), the key stream of ChaCha20; a key of 32 bytes is used for one mask only."""
    return np.frombuffer(Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(4 * size)), "<u4")


def _pair_mask(own: int, other: int, private: bytes, public: bytes, size: int) -> np.ndarray:
    """Return what `own` adds for `other`, who adds its negative."""
    mask = _mask(urlsafe_b64decode(_agree(private, public)), size)
    return mask if own > other else np.negative(mask)


def _array(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def _stack(rows: Sequence[bytes], size: int) -> np.ndarray:
    return _array(b"".join(rows)).reshape(len(rows), size)


def _bytes(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.uint8)
