"""Certificates and node keys for a trial: a CA, a server certificate it signs, one key pair a node.

Private keys are written with mode 600 and never shown. For a deployment between institutions take the certificates of
your own authority instead of these.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedoptax.deploy.wire import shown
from fedoptax.errors import RunError, UsageError

DAYS = 365
_NAME = re.compile(r"[A-Za-z0-9*_-]{1,63}(\.[A-Za-z0-9*_-]{1,63})*\.?")


def check_hosts(hosts: Sequence[str]) -> None:
    """Checks that each host is an address or a name that a certificate can hold.

    Raises:
      UsageError: one is not, or there is none.
    """
    if not hosts:
        raise UsageError("hosts: none given, allowed is at least one name or address of the server")
    for host in hosts:
        if not _is_address(host) and not (len(host) <= 253 and _NAME.fullmatch(host)):
            raise UsageError(
                f"--host: '{shown(host)}' given, allowed is an address, or a name in ASCII (of an international one "
                "the form that begins with xn--)"
            )


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Writes `ca.crt`, `server.crt` and `server.key`; the CA's own key is not kept, so nobody can sign with it later.

    Args:
      folder: where to.
      hosts: names and addresses under which clients reach the server.

    Raises:
      UsageError: as `check_hosts`.
      RunError: a file cannot be written.
    """
    check_hosts(hosts)
    ca_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca_name = _name("fedoptax trial CA")
    ca = (
        _certificate(ca_name, ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    server = (
        _certificate(_name(hosts[0][:64]), ca_name, server_key.public_key())
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    write_public(folder / "ca.crt", ca.public_bytes(serialization.Encoding.PEM))
    write_public(folder / "server.crt", server.public_bytes(serialization.Encoding.PEM))
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    write_private(folder / "server.key", server_key.private_bytes(*pem))


def make_node_key(private: Path) -> None:
    """Writes a node's key, P-384 in OpenSSH's format as Flower demands, and beside it the public one (`.pub`).

    Raises:
      RunError: a file cannot be written.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    write_private(private, key.private_bytes(*form))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_public(private.with_name(private.name + ".pub"), public + b"\n")


def write_private(path: Path, data: bytes) -> None:
    """Writes a file that only its owner may read, from its first moment on; one that is there is not touched.

    Raises:
      RunError: it exists or cannot be written.
    """
    _write(path, data, 0o600)


def write_public(path: Path, data: bytes) -> None:
    """Writes a file that all may read."""
    _write(path, data, 0o644)


def _write(path: Path, data: bytes, mode: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
    except OSError as error:
        raise RunError(f"'{path}' cannot be written: {error.strerror}") from error


def _certificate(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _usage(sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(host: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(host)) if _is_address(host) else x509.DNSName(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
