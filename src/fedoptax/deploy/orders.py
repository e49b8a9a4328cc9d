"""Orders that only the server can give: signed (Ed25519), for one node, and executed once.

Flower delivers to a node whatever another registered node sends in the server's name. So the server signs every order,
with the arrays, Flower's run, the node, the kind of message and a number that grows; a node refuses an older number.
The public key is part of the app, the private key stays at the server.
"""

import hashlib
import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedoptax.deploy.wire import WireError
from fedoptax.errors import UsageError


class Signer:
    """Signs the orders of one of Flower's runs with the private key in a file; the app has its public half.

    A file that cannot be read, or holds another key, is a `UsageError`.
    """

    def __init__(self, path: Path, public: str, run: int) -> None:
        try:
            key = load_ssh_private_key(path.read_bytes(), None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise UsageError(f"signing_key must be the server's private key, got '{path}' ({error})") from error
        if not isinstance(key, Ed25519PrivateKey) or key.public_key() != load_key(public):
            raise UsageError(f"signing_key must be the private half of server_key, got '{path}'")
        self._key, self._run, self._numbers = key, run, count(1)

    def sign(self, order: Mapping[str, Any], kind: str, node: int, digest: str) -> dict[str, Any]:
        """Return an order with its number and its signature for a node; `digest` is of the arrays."""
        numbered = {**order, "number": next(self._numbers)}
        return {**numbered, "signature": self._key.sign(_signed_bytes(numbered, digest, self._run, node, kind))}


def check_order(public: str, order: Mapping[str, Any], arrays: bytes, run: int, node: int, kind: str) -> None:
    """Raise a `WireError` unless the server has signed an order with its arrays for this run, node and kind of message.

    If `public` is not a key it is a `UsageError`.
    """
    signed = {name: value for name, value in order.items() if name != "signature"}
    try:
        load_key(public).verify(order["signature"], _signed_bytes(signed, digest_of(arrays), run, node, kind))
    except (KeyError, TypeError, InvalidSignature):
        raise WireError(f"order: not signed by the server for this node, run and kind of message ({kind})") from None


def load_key(public: str) -> Ed25519PublicKey:
    """Return the server's public key; a `UsageError` if it is not one."""
    try:
        key = load_ssh_public_key(public.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(f"server_key must be an Ed25519 key, as deploy init writes it, got '{public}'")
    return key


def digest_of(arrays: bytes) -> str:
    """Return the SHA-256 of packed arrays, in hexadecimal digits."""
    return hashlib.sha256(arrays).hexdigest()


def _signed_bytes(order: Mapping[str, Any], digest: str, run: int, node: int, kind: str) -> bytes:
    order = {**order, "run": str(run), "node": str(node), "kind": kind}
    text = json.dumps(order, sort_keys=True, separators=(",", ":"), default=lambda b: {"hex": b.hex()})
    return f"fedoptax order\n{text}\n{digest}".encode()
