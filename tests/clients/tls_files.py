"""Certificates and keys of the kinds that OpenSSL creates, as files."""

from __future__ import annotations

import dataclasses
import datetime
import ipaddress
import pathlib
from collections.abc import Callable
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

_PKCS8 = serialization.PrivateFormat.PKCS8
#: PKCS#1 for RSA and SEC1 for elliptic curves.
_TRADITIONAL = serialization.PrivateFormat.TraditionalOpenSSL

#: How each kind of key is made, and in which form it is written.
KEY_KINDS: dict[str, tuple[Callable[[], Any], serialization.PrivateFormat]] = {
    "RSA 2048, PKCS#1": (lambda: rsa.generate_private_key(65537, 2048), _TRADITIONAL),
    "RSA 4096, PKCS#8": (lambda: rsa.generate_private_key(65537, 4096), _PKCS8),
    "P-256, SEC1": (lambda: ec.generate_private_key(ec.SECP256R1()), _TRADITIONAL),
    "P-384, PKCS#8": (lambda: ec.generate_private_key(ec.SECP384R1()), _PKCS8),
    "Ed25519, PKCS#8": (ed25519.Ed25519PrivateKey.generate, _PKCS8),
}


@dataclasses.dataclass(frozen=True)
class Identity:
    """A certificate, with its issuers' certificates below the root, and its key, as files."""

    certificate: pathlib.Path
    key: pathlib.Path
    serial: int

    def flags(self, door: str) -> list[str]:
        """The flags with which a door presents it."""
        return [
            f"--{door}-use-ssl=true",
            f"--{door}-server-cert={self.certificate}",
            f"--{door}-server-key={self.key}",
        ]


class Authority:
    """Signs certificates."""

    def __init__(self, folder: pathlib.Path, name: str, issuer: Authority | None = None) -> None:
        """Creates an authority, which another one may have signed."""
        self._folder = folder
        self._issuer = issuer
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(self._name, self._key.public_key(), issuer or self, days=30)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        self._certificate = (issuer or self)._sign(builder)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(_pem(self._certificate))

    def issue(self, name: str, kind: str = "P-256, SEC1", days: int = 30) -> Identity:
        """A certificate for `localhost`; with negative `days` it has expired."""
        make_key, form = KEY_KINDS[kind]
        key = make_key()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        builder = self._builder(subject, key.public_key(), self, days).add_extension(names, False)
        certificate = self._sign(builder)
        chain = [certificate] + ([self._certificate] if self._issuer else [])
        serial = certificate.serial_number
        identity = Identity(
            self._folder / f"{name}-{serial}.pem", self._folder / f"{name}-{serial}.key", serial
        )
        identity.certificate.write_bytes(b"".join(map(_pem, chain)))
        identity.key.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        )
        return identity

    @staticmethod
    def _builder(
        subject: x509.Name, key: Any, issuer: Authority, days: int
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.timezone.utc)
        begin = now - datetime.timedelta(days=1 + max(0, -2 * days))
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(now + datetime.timedelta(days=days))
        )

    def _sign(self, builder: x509.CertificateBuilder) -> x509.Certificate:
        return builder.sign(self._key, hashes.SHA256())


def encrypted(identity: Identity) -> pathlib.Path:
    """Another file with its key, protected by a passphrase."""
    key = serialization.load_pem_private_key(identity.key.read_bytes(), None)
    file = identity.key.with_suffix(".encrypted")
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, _PKCS8, serialization.BestAvailableEncryption(b"secret")
        )
    )
    return file


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
