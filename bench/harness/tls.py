"""The certificate for rows that use TLS."""

from __future__ import annotations

import dataclasses
import pathlib
import ssl
import subprocess

from .workloads import Load

NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


@dataclasses.dataclass(frozen=True)
class Certificate:
    """A self-signed certificate, and its key."""

    certificate: pathlib.Path
    key: pathlib.Path

    def flags(self, load: Load) -> list[str]:
        """The flags with which a server serves the load."""
        return [
            f"--{load.protocol}-use-ssl=true",
            f"--{load.protocol}-server-cert={self.certificate}",
            f"--{load.protocol}-server-key={self.key}",
        ]

    def context(self) -> ssl.SSLContext:
        """The settings for the harness's own requests."""
        return ssl.create_default_context(cafile=str(self.certificate))


def certificate(work: pathlib.Path) -> Certificate:
    """Creates a certificate with openssl, once."""
    made = Certificate(work / "tls.pem", work / "tls.key")
    if not made.certificate.exists():
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "30"]
        command += ["-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=localhost"]
        command += ["-addext", NAMES, "-keyout", str(made.key), "-out", str(made.certificate)]
        subprocess.run(command, check=True, capture_output=True)
    return made
