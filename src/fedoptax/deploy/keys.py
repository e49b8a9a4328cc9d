"""Certificates and node keys for a trial: a CA, a server certificate that it signs, one key pair per node.

For a deployment between institutions take the certificates of your own authority instead.
"""

import datetime
import os
from collections.abc import Sequence
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from fedoptax.errors import RunError, UsageError

HOSTS = ("localhost", "127.0.0.1", "::1")


def make_keys(nodes: int, hosts: Sequence[str] = HOSTS) -> dict[str, bytes]:
    """Make certificates and keys as the contents of files by name; nothing is written.

    The files are `ca.crt`, `server.crt` and `server.key` for a server with the names and addresses in `hosts`, and
    `node-I` with `node-I.pub` for each node: P-384 in OpenSSH's format, as Flower demands. The CA's own key is not
    kept, so nobody can sign with it later.

    Raises:
      UsageError: a host is not one that a certificate can hold.
    """
    ca = trustme.CA()
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=365)
    try:
        server = ca.issue_cert(*hosts, not_after=end)
    except ValueError as error:
        raise UsageError(f"--host must be an address or a name, got {', '.join(hosts)} ({error})") from error
    files = {
        "ca.crt": ca.cert_pem.bytes(),
        "server.crt": b"".join(blob.bytes() for blob in server.cert_chain_pems),
        "server.key": server.private_key_pem.bytes(),
    }
    for node in range(nodes):
        key = ec.generate_private_key(ec.SECP384R1())
        files[f"node-{node}"] = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        files[f"node-{node}.pub"] = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
    return files


def write_keys(folder: Path, files: dict[str, bytes]) -> None:
    """Write keys into a folder that only its owner may enter; private keys have mode 600 from their first moment on.

    Raises:
      RunError: a file exists or cannot be written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in files.items():
            mode = 0o644 if name.endswith((".crt", ".pub")) else 0o600
            with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content)
    except OSError as error:
        raise RunError(f"'{error.filename or folder}' cannot be written: {error.strerror}") from error
