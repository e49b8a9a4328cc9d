"""Secure aggregation: the server of a deployment learns the sum of the nodes' numbers, but no node's.

Bonawitz et al. 2017, *Practical Secure Aggregation for Privacy-Preserving Machine Learning*, Figure 4, against a server
that is honest but curious; it is SecAgg+ (Bell et al. 2020) in which all members of a cohort are neighbours. A sum is
four requests to each node, one after another; whoever fails in one is not asked the next:

- `keys`: the node makes two key pairs, one for masks and one for encryption, and sends the public halves.
- `shares`: it draws a seed and splits it, and its private key for masks, by Shamir's scheme; to each member, itself
  too, it sends a share of both, encrypted.
- `upload`: it sends its numbers, integers modulo 2³², plus the mask of its seed, plus or minus a mask for each other
  member. The latter cancel in the sum.
- `unmask`: it sends its shares of the seeds of those whose upload arrived, and of the keys of those whose did not; and
  the keys for the next sum, which then needs no `keys` request.

A request that comes again is answered as before, but with no other contents than the first time. The numbers are those
of `SecureMean` in training, and of `encode_numbers` for the statistics of tables.
Key agreement (ECDH on P-384, HKDF), encryption (Fernet) and Shamir's shares are those of cryptography and pycryptodome.
Masks are key streams: Flower's generator has 32 bits of seed (see LOG.md).
"""

import os
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
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

from fedoptax.algorithm import FedAlgorithm, Tree, accumulate_result, decoded
from fedoptax.deploy.client import Order
from fedoptax.deploy.orders import digest_of
from fedoptax.deploy.rounds import Limits, Log, MakeOrder, Network, NoQuorum, RoundReport, Sleep, gather
from fedoptax.deploy.server import RawReply, Reply, check_count
from fedoptax.deploy.wire import WireError, pack, quote, unpack
from fedoptax.engine.aggregation import LEVELS, SecureMean, Sent
from fedoptax.errors import RunError
from fedoptax.tree import all_finite

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
"""The requests for a sum in their order, and what comes with each."""
FALSE_SUM = "secure aggregation: honest nodes cannot produce this sum, so a node sent false numbers"
LIMBS, LIMB, FRACTION = 12, 20, 100  # of `encode_numbers`: how many limbs, bits of a limb, bits after the point
Numbers = dict[str, Any]
Contribute = Callable[[float], tuple[np.ndarray, Numbers]]
"""`weight -> integers, numbers`: what a node adds to the sum, uint32 (size,), and what it tells besides."""


def threshold(cohort_size: int, limits: Limits) -> int:
    """Return how many nodes must stay to the end: the quorum, more than half, and never fewer than three."""
    return max(limits.needed(cohort_size), cohort_size // 2 + 1, SecureMean.min_uploads)


def answer(
    partition: int, minimum: int, arrays: bytes, fields: Mapping[str, Any], memory: Numbers, examples: int,
    contribute: Contribute,
) -> tuple[Tree, Numbers]:  # fmt: skip
    """Return what a node answers to a request of the server.

    Each but `keys` is answered once for a sum, or again with the same contents: a server that had both shares of a
    node, or two uploads under one mask, would see the upload. Until its upload a node can begin anew, with new keys.

    The request is the order, `fields`, with `stage` and what belongs to it, and in `upload` the algorithm's message,
    `arrays`; `contribute` then gives the node's integers. `minimum` is the `threshold`. The node's `memory` of the sum,
    plain values, is changed. If the request is not what the round has come to, or the upload not finite, that is a
    `WireError`.
    """
    order, stage = Order.read(fields), fields.get("stage")
    if stage not in STAGES:
        raise WireError(f"stage: {quote(stage)} instead of {', '.join(STAGES)}")
    if missing := [name for name in STAGES[stage] if name not in fields]:
        raise WireError(f"stage: {stage} without {', '.join(missing)}")
    if stage == "keys":
        return _offer_keys(memory), {"num-examples": examples}
    content = {name: value for name, value in fields.items() if name not in ("number", "signature")}
    digest = digest_of(f"{sorted(content.items())} {digest_of(arrays)}".encode())
    is_current, answered = memory.get("round") == order.round, memory.get(f"answered-{stage}")
    is_again = is_current and answered == digest
    if stage == "shares":
        is_due = "next-mask" in memory and not (is_current and "answered-upload" in memory)
    else:
        before = list(STAGES)[list(STAGES).index(stage) - 1]
        is_due = is_current and answered is None and f"answered-{before}" in memory
    if not (is_due or is_again):
        raise WireError(f"stage: {stage} of round {order.round}, which is not due or was already answered")
    members = fields["members"]
    is_subset = stage == "shares" or set(members) <= set(memory["members"])
    if partition not in members or len(members) < minimum or not is_subset:
        raise WireError(f"members: {quote(members)} instead of {minimum} or more, partition {partition} among them")
    if stage == "shares":
        if not is_again:
            pairs = {name: memory[f"next-{name}"] for name in PAIRS}
            memory.clear()
            memory |= pairs | {name: fields[name] for name in STAGES[stage]}
            memory |= {"seed": os.urandom(32), "round": order.round, "answered-shares": digest}
        of_seed, of_key = (_split(memory[name], minimum, len(members)) for name in ("seed", "mask"))
        texts = [_address(partition, i) + seed + key for i, seed, key in zip(members, of_seed, of_key)]
        boxes = [_box(memory["encryption"], key) for key in memory["encryption-keys"]]
        ciphertexts = [_array(box.encrypt(text)) for box, text in zip(boxes, texts, strict=True)]
        return {"ciphertexts": np.stack(ciphertexts)}, {}
    memory[f"answered-{stage}"] = digest
    if stage == "upload":
        integers, numbers = contribute(fields["weight"])
        keys = dict(zip(memory["members"], memory["mask-keys"]))
        masks = (_pair_mask(partition, i, memory["mask"], keys[i], integers.size) for i in members if i != partition)
        masked = sum(masks, integers + _mask(memory["seed"], integers.size))
        memory |= {"uploading": members, "ciphertexts": fields["ciphertexts"]}
        return {"masked": masked}, numbers
    keys = dict(zip(memory["members"], memory["encryption-keys"]))
    shares = {
        i: _decrypt_shares(_box(memory["encryption"], keys[i]), ciphertext, i, partition)
        for i, ciphertext in zip(memory["uploading"], memory["ciphertexts"], strict=True)
    }
    seeds = b"".join(seed for i, (seed, _) in shares.items() if i in members)
    private = b"".join(key for i, (_, key) in shares.items() if i not in members)
    rows = {"seeds": _array(seeds).reshape(-1, SEED_SHARE), "keys": _array(private).reshape(-1, KEY_SHARE)}
    return rows | _offer_keys(memory), {"num-examples": examples}


def encode_upload(
    algorithm: FedAlgorithm, coding: SecureMean, weight: float, upload: Tree, numbers: Numbers
) -> tuple[np.ndarray, Numbers]:
    """Return what a client contributes with its upload and loss in training; a `WireError` if they are not finite."""
    upload = decoded(algorithm, jax.tree.map(jnp.asarray, upload))
    sent = Sent(upload, jnp.asarray(numbers["train-loss"], float))
    if not all_finite(sent):
        raise WireError("upload: NaN or infinity")
    integers = np.asarray(ravel_pytree(coding.encode(jnp.asarray(weight, float), sent))[0]).view(np.uint32)
    return integers, {name: numbers[name] for name in ("state-lost", "train-seconds")}


def encode_numbers(numbers: np.ndarray) -> np.ndarray:
    """Return float64 (n,) as integers, uint32 (n, LIMBS): x·2¹⁰⁰ modulo 2²⁴⁰ in limbs of 20 bits, the lowest first.

    The limbs of up to 4,096 nodes can be added modulo 2³²; a number is exact to 2⁻¹⁰⁰, a sum must be below 2¹³⁹. A
    number that is not finite, or 2¹³⁰ or more, is a `RunError`.
    """
    if not (np.abs(numbers) < 2.0**130).all():
        raise RunError(f"secure_aggregation needs sums below 2^130, got {np.abs(numbers).max():.3g}")
    mask = 2**LIMB - 1
    integers = [int(np.ldexp(x, FRACTION)) for x in numbers]
    return np.array([[n >> LIMB * i & mask for i in range(LIMBS)] for n in integers], np.uint32).reshape(-1, LIMBS)


def decode_numbers(total: np.ndarray, count: int) -> np.ndarray:
    """Return the sum, float64 (n,), of what `count` nodes encoded; `total` is uint32 (n, LIMBS).

    If so many nodes cannot have encoded it, that is `NoQuorum`.
    """
    if total.max(initial=0) > count * (2**LIMB - 1):
        raise NoQuorum(FALSE_SUM)
    modulus = 2 ** (LIMB * LIMBS)
    integers = (sum(int(limb) << LIMB * i for i, limb in enumerate(row)) % modulus for row in total)
    return np.array([np.ldexp(float(n - modulus if 2 * n >= modulus else n), -FRACTION) for n in integers])


@dataclass(frozen=True)
class SecureSum:
    """How a server collects a sum of nodes' numbers.

    `order` goes with each request, a message of this `kind`; `minimum` is the `threshold`, `max_examples` the most that
    a node may claim. `offered` are the keys that nodes sent with the last sum, by partition, changed to those for the
    next; the others are as for `rounds.gather`.
    """

    network: Network
    limits: Limits
    log: Log
    sleep: Sleep
    order: MakeOrder
    minimum: int
    max_examples: int
    offered: dict[int, Reply]
    kind: str = "train"

    def collect(
        self, cohort: Sequence[int], message: Tree, size: int, weighting: str
    ) -> tuple[RoundReport, np.ndarray, float]:
        """Collect the sum of a cohort's numbers, `size` of each, with "examples" or "uniform" as their weights.

        Return the report, with replies without uploads; the sum, uint32 (size,); and the sum of the weights in it. If
        fewer than `minimum` nodes answered a request, or what they sent opens no sum, that is `NoQuorum`.
        """
        report, offered = RoundReport(), self.offered
        request = partial(self._request, report)

        def exchange_shares(keys: dict[int, Reply]) -> tuple[Numbers, dict[int, Reply]]:
            public = {f"{name}-keys": [reply.upload[name].tobytes() for reply in keys.values()] for name in PAIRS}
            wanted = {"ciphertexts": _bytes(len(keys), CIPHERTEXT)}
            return public, request("shares", list(keys), wanted, lambda i: public)

        keys, encrypted = {i: offered[i] for i in cohort if i in offered}, dict[int, Reply]()
        offered.clear()
        if len(keys) == len(cohort):
            with suppress(NoQuorum):
                public, encrypted = exchange_shares(keys)
        if len(encrypted) < len(cohort):  # nodes that come, or that have started anew, have other keys
            report.faults.clear()
            keys = request("keys", cohort, PUBLIC)
            public, encrypted = exchange_shares(keys)
        sizes = jnp.asarray([reply.examples if weighting == "examples" else 1 for reply in keys.values()], float)
        weights, places = sizes / jnp.sum(sizes), {i: place for place, i in enumerate(keys)}

        def deliver(i: int) -> Numbers:
            ciphertexts = [reply.upload["ciphertexts"][places[i]].tobytes() for reply in encrypted.values()]
            return {"ciphertexts": ciphertexts, "weight": float(weights[places[i]])}

        masked = {"masked": jax.ShapeDtypeStruct((size,), np.uint32)}
        uploads = request("upload", list(encrypted), masked, deliver, message)
        lost = [i for i in encrypted if i not in uploads]
        wanted = {"seeds": _bytes(len(uploads), SEED_SHARE), "keys": _bytes(len(lost), KEY_SHARE)}
        opened = request("unmask", list(uploads), wanted | PUBLIC)
        shares = [reply.upload for reply in opened.values()]
        total = np.asarray(sum(reply.upload["masked"] for reply in uploads.values()))
        try:
            for place in range(len(uploads)):
                total -= _mask(_combine(of["seeds"][place] for of in shares), total.size)
            for place, i in enumerate(lost):
                private = _combine(of["keys"][place] for of in shares)
                for j in uploads:
                    total += _pair_mask(i, j, private, public["mask-keys"][places[j]], total.size)
        except (ValueError, IndexError) as error:
            raise NoQuorum("secure aggregation, unmask: shares are inconsistent, so a node sent false ones") from error
        offered |= opened
        report.replies = {i: Reply((), 0.0, keys[i].examples) for i in uploads}
        return report, total, float(jnp.sum(weights[np.asarray([places[i] for i in uploads])]))

    def _request(
        self, report: RoundReport, stage: str, members: Sequence[int], wanted: Tree,
        more: Callable[[int], Numbers] = lambda i: {}, message: Tree = (),
    ) -> dict[int, Reply]:  # fmt: skip
        """Return the replies to one request, of the form `wanted`; `more(i)` goes with the one to partition i."""

        def check(raw: RawReply) -> Reply:
            reply = unpack(raw.arrays, wanted)
            if stage not in ("keys", "unmask"):
                return Reply(reply, 0.0, 0)
            for name in PAIRS:
                try:
                    _public_key(reply[name].tobytes())
                except ValueError as error:
                    raise WireError(f"array '{name}': no public key on the curve") from error
            return Reply(reply, 0.0, check_count(raw.numbers, self.max_examples))

        asked = {"stage": stage, "members": list(members)}
        self.network.begin(pack(message), lambda i: {**self.order(i), **asked, **more(i)}, self.kind)
        # who comes after `keys` has none that the others know, and is not waited for
        wait = self.limits.wait_limit if stage == "keys" else self.limits.round_timeout
        limits = replace(self.limits, quorum=self.minimum / len(members), wait_limit=wait)
        try:
            answers = gather(self.network, members, check, limits, self.log, sleep=self.sleep)
        except NoQuorum as error:
            raise NoQuorum(f"secure aggregation, {stage}: {error}") from error
        report.lost += answers.lost
        report.seconds = {n: report.seconds.get(n, 0.0) + s for n, s in answers.seconds.items()}
        report.faults += [(i, node, f"{stage}: {reason}") for i, node, reason in answers.faults]
        report.sent = answers.sent if stage == "upload" else report.sent
        return answers.replies


def decode_mean(coding: SecureMean, form: Sent, count: int, total: np.ndarray, weight: float) -> Reply:
    """Return the mean of `count` uploads of this form, as one reply, from their sum and the sum of their weights.

    If honest nodes cannot have this sum, that is `NoQuorum`.
    """
    largest = np.max(np.abs(total.view(np.int32).astype(np.int64)), initial=0)
    if largest > weight * LEVELS + 256 * count:  # as much as float32 rounds of each
        raise NoQuorum(f"{FALSE_SUM} ({largest / LEVELS:.3g} of the range instead of at most {weight:.3g})")
    integers = ravel_pytree(coding.zero(form))[1](jnp.asarray(total.view(np.int32)))
    mean = accumulate_result(coding.divide(integers, jnp.asarray(weight, float), form), form)
    return Reply(mean.upload, float(mean.loss), 1)


def _offer_keys(memory: Numbers) -> Tree:
    """Return the public halves of the key pairs for the next sum, made if there are none."""
    for name in PAIRS:
        if f"next-{name}" not in memory:
            number = ec.generate_private_key(CURVE).private_numbers().private_value
            memory[f"next-{name}"] = number.to_bytes(PRIVATE_KEY)
    form = Encoding.X962, PublicFormat.CompressedPoint
    return {name: _array(_private_key(memory[f"next-{name}"]).public_key().public_bytes(*form)) for name in PAIRS}


def _private_key(private: bytes) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(private), CURVE)


def _public_key(public: bytes) -> ec.EllipticCurvePublicKey:
    return ec.EllipticCurvePublicKey.from_encoded_point(CURVE, public)


def _agree(private: bytes, public: bytes, info: bytes = b"") -> bytes:
    """Return 32 bytes for a purpose that only the holders of the two private keys know."""
    return HKDF(SHA256(), 32, None, info).derive(_private_key(private).exchange(ec.ECDH(), _public_key(public)))


def _box(private: bytes, public: bytes) -> Fernet:
    return Fernet(urlsafe_b64encode(_agree(private, public)))


def _address(sender: int, receiver: int) -> bytes:
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
        address, shares = (text := box.decrypt(ciphertext))[:8], text[8:]
    except InvalidToken:
        address, shares = b"", b""
    if address != _address(sender, partition) or len(shares) != SEED_SHARE + KEY_SHARE:
        shares = bytes(SEED_SHARE + KEY_SHARE)
    return shares[:SEED_SHARE], shares[SEED_SHARE:]


def _mask(key: bytes, size: int) -> np.ndarray:
    """Return uint32 (size,), the key stream of ChaCha20; a key of 32 bytes is used for one mask only."""
    return np.frombuffer(Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(4 * size)), "<u4")


def _pair_mask(partition: int, other: int, private: bytes, public: bytes, size: int) -> np.ndarray:
    """Return the mask that one adds and the other subtracts; their numbers are in it, as two may offer one key."""
    mask = _mask(_agree(private, public, _address(*sorted((partition, other)))), size)
    return mask if partition > other else np.negative(mask)


def _array(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def _bytes(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.uint8)


PUBLIC = {name: _bytes(PUBLIC_KEY) for name in PAIRS}
"""The form of the keys that a node offers."""
