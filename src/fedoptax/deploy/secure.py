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
Key agreement (ECDH on P-384, HKDF), encryption (Fernet) and Shamir's shares are those of cryptography and pycryptodome.
Masks are key streams: Flower's generator has 32 bits of seed (see LOG.md).
"""

import hashlib
import os
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from Crypto.Util.Padding import pad, unpad
from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jax.flatten_util import ravel_pytree

from fedoptax.algorithm import Tree, accumulate_result, decoded
from fedoptax.deploy.client import Client, Order
from fedoptax.deploy.orders import digest_of
from fedoptax.deploy.rounds import Limits, NoQuorum, RoundReport
from fedoptax.deploy.server import RawReply, Reply, check_count
from fedoptax.deploy.wire import WireError, pack, shown, unpack
from fedoptax.engine.aggregation import LEVELS, SecureMean, Sent
from fedoptax.engine.plan import Plan
from fedoptax.engine.round import all_finite

CURVE = ec.SECP384R1()
PUBLIC_KEY, PRIVATE_KEY, SEED_SHARE, KEY_SHARE = 49, 48, 52, 68  # bytes; a share has an index of 4, and 16 of padding
CIPHERTEXT = 268  # bytes of Fernet's for two numbers of 4 and both shares
PAIRS = ("mask", "encryption")
STAGES: dict[str, tuple[str, ...]] = {
    "keys": (),
    "shares": ("members", "mask-keys", "encryption-keys"),
    "upload": ("members", "ciphertexts", "weight"),
    "unmask": ("members",),
}
"""The requests of a round in their order, and what comes with each."""
FALSE_SUM = "secure aggregation: honest nodes cannot produce this sum, so a node sent false numbers"
Numbers = dict[str, Any]
Ask = Callable[[Sequence[int], Tree, Callable[[int], Numbers], Callable[[RawReply], Reply]], RoundReport]
"""`(members, message, more, check) -> report`: one request, with `more(i)` for partition i beside its order."""


def threshold(cohort_size: int, limits: Limits) -> int:
    """Return how many nodes must stay to the end: the quorum, more than half, and never fewer than three."""
    return max(limits.needed(cohort_size), cohort_size // 2 + 1, SecureMean.min_uploads)


def answer(
    client: Client, plan: tuple[SecureMean, int], arrays: bytes, fields: Numbers, memory: Numbers, root: Path
) -> RawReply:
    """Answer a request of the server.

    Each but the first is answered once in a round, or again with the same contents: a server that had both shares of a
    node, or two uploads under one mask, would see the upload.

    Args:
      client: who answers.
      plan: the coding, and the `threshold`.
      arrays: the algorithm's message, in `upload`.
      fields: the order, with `stage` and what belongs to it.
      memory: the node's memory of the round, plain values; changed here.
      root: the node's folder for states.

    Raises:
      WireError: the request is not what the round has come to, or the upload is not finite.
    """
    order, stage, partition = Order.read(fields), fields.get("stage"), client.partition
    if stage not in STAGES:
        raise WireError(f"stage: {shown(stage)} instead of {', '.join(STAGES)}")
    if missing := [name for name in STAGES[stage] if name not in fields]:
        raise WireError(f"stage: {stage} without {', '.join(missing)}")
    if stage == "keys":
        if memory.get("round") != order.round:
            memory.clear()
            made = {name: ec.generate_private_key(CURVE).private_numbers().private_value for name in PAIRS}
            memory |= {name: number.to_bytes(PRIVATE_KEY) for name, number in made.items()} | {"round": order.round}
        form = Encoding.X962, PublicFormat.CompressedPoint
        public = {name: _array(_private_key(memory[name]).public_key().public_bytes(*form)) for name in PAIRS}
        return RawReply(pack(public), {"num-examples": len(next(iter(client.examples().values())))})
    content = {name: value for name, value in fields.items() if name not in ("number", "signature")}
    digest = hashlib.sha256(f"{sorted(content.items())} {digest_of(arrays)}".encode()).digest()
    before = list(STAGES)[list(STAGES).index(stage) - 1]
    is_due = memory.get("round") == order.round and (before == "keys" or f"answered-{before}" in memory)
    if not is_due or memory.get(f"answered-{stage}", digest) != digest:
        raise WireError(f"stage: {stage} of round {order.round}, which is not due or was already answered")
    coding, minimum = plan
    members = fields["members"]
    if partition not in members or len(members) < minimum or not set(members) <= set(memory.get("members") or members):
        raise WireError(f"members: {shown(members)} instead of {minimum} or more, partition {partition} among them")
    memory[f"answered-{stage}"] = digest
    if stage == "shares":
        memory |= {"seed": os.urandom(32)} | {name: fields[name] for name in STAGES[stage]}
        of_seed, of_key = (_split(memory[name], minimum, len(members)) for name in ("seed", "mask"))
        texts = [_way(partition, i) + seed + key for i, seed, key in zip(members, of_seed, of_key)]
        pairs = zip(memory["encryption-keys"], texts, strict=True)
        ciphertexts = [_array(_box(memory["encryption"], key).encrypt(text)) for key, text in pairs]
        return RawReply(pack({"ciphertexts": np.stack(ciphertexts)}), {})
    if stage == "upload":
        upload, numbers = client.compute(arrays, order, root)
        upload = decoded(client.algorithm, jax.tree.map(jnp.asarray, upload))
        sent = Sent(upload, jnp.asarray(numbers["train-loss"], float))
        if not all_finite(sent):
            raise WireError("upload: NaN or infinity")
        coded = np.asarray(ravel_pytree(coding.encode(jnp.asarray(fields["weight"], float), sent))[0])
        keys = dict(zip(memory["members"], memory["mask-keys"]))
        masks = (_pair_mask(partition, i, memory["mask"], keys[i], coded.size) for i in members if i != partition)
        masked = sum(masks, coded.view(np.uint32) + _mask(memory["seed"], coded.size))
        memory |= {"uploading": members, "ciphertexts": fields["ciphertexts"]}
        return RawReply(pack({"masked": masked}), {name: numbers[name] for name in ("state-lost", "train-seconds")})
    keys = dict(zip(memory["members"], memory["encryption-keys"]))
    shares = {
        i: _decrypt_shares(_box(memory["encryption"], keys[i]), ciphertext, i, partition)
        for i, ciphertext in zip(memory["uploading"], memory["ciphertexts"], strict=True)
    }
    seeds = b"".join(seed for i, (seed, _) in shares.items() if i in members)
    private = b"".join(key for i, (_, key) in shares.items() if i not in members)
    rows = {"seeds": _array(seeds).reshape(-1, SEED_SHARE), "keys": _array(private).reshape(-1, KEY_SHARE)}
    return RawReply(pack(rows), {})


def gather_sum(
    ask: Ask, cohort: Sequence[int], message: Tree, form: Sent, plan: Plan, minimum: int, max_examples: int
) -> RoundReport:
    """Collect the mean of a cohort's uploads; the report has it as `mean`, and replies without uploads.

    Args:
      ask: makes a request.
      cohort: the partitions to ask.
      message: the algorithm's, as NumPy arrays.
      form: of what a client sends, decoded, as structs.
      plan: of the round.
      minimum: the `threshold`.
      max_examples: the most that a node may claim.

    Raises:
      NoQuorum: fewer than `minimum` nodes answered a request, or what they sent opens no sum.
    """
    report, coding = RoundReport(), plan.aggregate
    assert isinstance(coding, SecureMean)

    def request(stage: str, members: Sequence[int], wanted: Tree, more: Any = lambda i: {}, message: Tree = ()) -> Any:
        def check(raw: RawReply) -> Reply:
            reply = unpack(raw.arrays, wanted)
            if stage != "keys":
                return Reply(reply, 0.0, 0)
            for name, key in reply.items():
                try:
                    _public_key(key.tobytes())
                except ValueError as error:
                    raise WireError(f"array '{name}': no public key on the curve") from error
            return Reply(reply, 0.0, check_count(raw.numbers, max_examples))

        try:
            answers = ask(members, message, lambda i: {"stage": stage, "members": list(members)} | more(i), check)
        except NoQuorum as error:
            raise NoQuorum(f"secure aggregation, {stage}: {error}") from error
        report.lost += answers.lost
        report.seconds = {n: report.seconds.get(n, 0.0) + s for n, s in answers.seconds.items()}
        report.faults += [(i, node, f"{stage}: {reason}") for i, node, reason in answers.faults]
        report.bytes_down, report.bytes_up = report.bytes_down + answers.bytes_down, report.bytes_up + answers.bytes_up
        report.senders, report.sent = answers.senders, answers.sent if stage == "upload" else report.sent
        return answers.replies

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
        raise NoQuorum("secure aggregation, unmask: shares are inconsistent, so a node sent false ones") from error
    weight = jnp.sum(weights[np.asarray([places[i] for i in uploads])])
    largest = np.max(np.abs(total.view(np.int32).astype(np.int64)), initial=0)
    if largest > float(weight) * LEVELS + 256 * len(uploads):  # as much as float32 rounds of each
        share = f"{largest / LEVELS:.3g} of the range instead of at most {float(weight):.3g}"
        raise NoQuorum(f"{FALSE_SUM} ({share})")
    mean = accumulate_result(coding.divide(unravel(jnp.asarray(total.view(np.int32))), weight, form), form)
    report.mean = mean.upload, float(mean.loss)
    report.replies = {i: Reply((), 0.0, keys[i].examples) for i in uploads}
    return report


def _private_key(private: bytes) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(private), CURVE)


def _public_key(public: bytes) -> ec.EllipticCurvePublicKey:
    return ec.EllipticCurvePublicKey.from_encoded_point(CURVE, public)


def _agree(private: bytes, public: bytes) -> bytes:
    """Return 32 bytes that only the holders of the two private keys know."""
    return HKDF(SHA256(), 32, None, b"").derive(_private_key(private).exchange(ec.ECDH(), _public_key(public)))


def _box(private: bytes, public: bytes) -> Fernet:
    return Fernet(urlsafe_b64encode(_agree(private, public)))


def _way(sender: int, receiver: int) -> bytes:
    return sender.to_bytes(4) + receiver.to_bytes(4)


def _split(secret: bytes, minimum: int, count: int) -> list[bytes]:
    """Return shares of a secret; any `minimum` reveal it. Each is an index and as many bytes as the padded secret."""
    padded = pad(secret, 16)  # a sum of the shares that is not the secret shows by it
    parts = [Shamir.split(minimum, count, padded[i : i + 16], ssss=False) for i in range(0, len(padded), 16)]
    return [shares[0][0].to_bytes(4) + b"".join(share for _, share in shares) for shares in zip(*parts)]


def _combine(shares: Iterable[np.ndarray]) -> bytes:
    """Return the secret, or raise ValueError (inconsistent shares) or IndexError (no shares)."""
    rows = [share.tobytes() for share in shares if share.any()]
    places = range(4, len(rows[0]), 16)
    parts = (Shamir.combine([(int.from_bytes(row[:4]), row[i : i + 16]) for row in rows], ssss=False) for i in places)
    return unpad(b"".join(parts), 16)


def _decrypt_shares(box: Fernet, ciphertext: bytes, sender: int, partition: int) -> tuple[bytes, bytes]:
    """Return the shares of the sender's seed and key; zeros, which are no share, if the ciphertext is not sound."""
    try:
        way, shares = (text := box.decrypt(ciphertext))[:8], text[8:]
    except InvalidToken:
        way, shares = b"", b""
    if way != _way(sender, partition) or len(shares) != SEED_SHARE + KEY_SHARE:
        shares = bytes(SEED_SHARE + KEY_SHARE)
    return shares[:SEED_SHARE], shares[SEED_SHARE:]


def _mask(key: bytes, size: int) -> np.ndarray:
    """Return uint32 (size,), the key stream of ChaCha20; a key of 32 bytes is used for one mask only."""
    return np.frombuffer(Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(4 * size)), "<u4")


def _pair_mask(partition: int, other: int, private: bytes, public: bytes, size: int) -> np.ndarray:
    """Return the mask that `partition` adds and `other` subtracts."""
    mask = _mask(_agree(private, public), size)
    return mask if partition > other else np.negative(mask)


def _array(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def _bytes(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.uint8)
