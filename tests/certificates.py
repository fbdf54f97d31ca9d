"""Certificates for tests of TLS: two authorities, and what they signed for servers and clients."""

import shutil
import subprocess
from pathlib import Path

import pytest

NEW = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
SIGNED = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
COMMANDS = (
    f"req -x509 {NEW} -days 2 -keyout ca.key -out ca.pem -subj /CN=authority",
    f"req -x509 {NEW} -days 2 -keyout other.key -out other.pem -subj /CN=somebody",
    f"req {NEW} -keyout server.key -out server.csr -subj /CN=localhost",
    f"x509 -req -in server.csr {SIGNED} -extfile name -out server.pem",
    f"x509 -req -in server.csr {SIGNED} -extfile both -out both.pem",
    f"req {NEW} -keyout client.key -out client.csr -subj /CN=client",
    f"x509 -req -in client.csr {SIGNED} -out client.pem",
    "x509 -req -in client.csr -CA other.pem -CAkey other.key -CAcreateserial -days 2 -out stranger.pem",
)


def tls_config(folder: Path, port: int, home: Path) -> str:
    """Return how a server is to run that speaks TLS at a port, and asks for client certificates."""
    return f"""
        tls-port {port}
        bind 127.0.0.1
        tls-cert-file {folder}/server.pem
        tls-key-file {folder}/server.key
        tls-ca-cert-file {folder}/ca.pem
        tls-auth-clients yes
        tls-replication yes
        dir {home}
    """


def make_certificates(folder: Path) -> Path:
    """Make them in a folder, and return it.

    The authorities are ``ca`` and ``other``. Of ``server.key`` are ``server`` for the name localhost and
    ``both`` for its address too; of ``client.key`` are ``client``, and ``stranger`` by the other authority.
    """
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.fail("These tests make their certificates with openssl: apt-get install openssl")
    (folder / "name").write_text("subjectAltName=DNS:localhost")
    (folder / "both").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    for command in COMMANDS:
        subprocess.run([openssl, *command.split()], cwd=folder, check=True, capture_output=True)
    return folder
