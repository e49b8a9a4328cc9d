"""Certificates and keys: a CA, a server certificate that it signs, one key pair per node, and one to sign orders.

For a deployment between institutions use the certificates of your own authority instead.
"""

import base64
import datetime
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trustme
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from fedoptax.deploy.wire import quote
from fedoptax.errors import RunError, UsageError

LOOPBACK = ("localhost", "127.0.0.1", "::1")  # addresses of the SuperLink for the proxy and Flower


def make_keys(nodes: int, hosts: Sequence[str] = ()) -> dict[str, bytes]:
    """Make certificates and keys as the contents of files by name; nothing is written.

    They are `ca.crt`, `server.crt` and `server.key` for a server with the names and addresses in `hosts` and those of
    the loopback interface; `node-I` and `node-I.pub` for each node, P-384 in OpenSSH's format, as Flower demands;
    `signing.key` and `signing.pub`, Ed25519, for the server's orders. The CA's own key is discarded. A host that a
    certificate cannot hold is a `UsageError`.
    """
    ca = trustme.CA()
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=365)
    try:
        server = ca.issue_cert(*dict.fromkeys((*hosts, *LOOPBACK)), not_after=end)
    except ValueError as error:
        raise UsageError(f"host must be an address or a name, got {', '.join(hosts)} ({error})") from error
    files = {
        "ca.crt": ca.cert_pem.bytes(),
        "server.crt": b"".join(blob.bytes() for blob in server.cert_chain_pems),
        "server.key": server.private_key_pem.bytes(),
    }
    pairs: dict[str, ec.EllipticCurvePrivateKey | Ed25519PrivateKey] = {"signing.key": Ed25519PrivateKey.generate()}
    pairs |= {f"node-{node}": ec.generate_private_key(ec.SECP384R1()) for node in range(nodes)}
    for name, key in pairs.items():
        files[name] = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        files[f"{name.removesuffix('.key')}.pub"] = public + f" {name}\n".encode()
    return files


def fingerprint(public: bytes) -> str:
    """Return a public key's fingerprint, as `ssh-keygen -l` shows it; the key is in OpenSSH's format or in PEM.

    A key that is not on an elliptic curve, the only kind that Flower accepts, is a `ValueError`.
    """
    load = serialization.load_pem_public_key if public.startswith(b"-----") else serialization.load_ssh_public_key
    key = load(public)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("not an elliptic-curve key")
    return "SHA256:" + base64.b64encode(serialization.ssh_key_fingerprint(key, SHA256())).decode().rstrip("=")


def describe_node(public: bytes) -> str:
    """Return the entry of a public key in the app's table of nodes: its fingerprint, and its comment as a name.

    Anything but the public half of a key that Flower takes is a `UsageError`.
    """
    try:
        comment = b"" if public.startswith(b"-----") else b" ".join(public.split()[2:])
        return f"{fingerprint(public)} {quote(comment.decode())}".strip()
    except (ValueError, UnsupportedAlgorithm) as error:
        remedy = "ssh-keygen -t ecdsa -b 384 makes one"
        raise UsageError(f"key must be a public key in OpenSSH's format ({error}); {remedy}") from error


def describe_keys(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return an app's settings for the files of `make_keys`: `server_key`, and `nodes`, see `describe_node`."""
    count = sum(name.startswith("node-") and name.endswith(".pub") for name in files)
    nodes = {str(partition): describe_node(files[f"node-{partition}.pub"]) for partition in range(count)}
    return {"server_key": " ".join(files["signing.pub"].decode().split()[:2]), "nodes": nodes}


def write_keys(folder: Path, files: dict[str, bytes]) -> None:
    """Write keys into a folder that only its owner may enter; private keys have mode 600 from their first moment on.

    A file that exists, or cannot be written, is a `RunError`.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in files.items():
            mode = 0o644 if name.endswith((".crt", ".pub")) else 0o600
            with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content)
    except OSError as error:
        raise RunError(f"'{error.filename or folder}' cannot be written: {error.strerror}") from error
