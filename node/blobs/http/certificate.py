"""The gateway's own certificate: self-signed, known by its fingerprint, its key encrypted on disk.

The fingerprint stands in the node's signed heartbeat, so the node key vouches for the certificate and no
authority has to.
"""

import datetime
import hashlib
import ssl
from pathlib import Path

import msgspec
from blake3 import blake3
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from node.state.files import write_whole
from protocol.identity import NodeKey

VALID = datetime.timedelta(days=365)
RENEW_BEFORE = datetime.timedelta(days=30)
_CONTEXT = "intellect-node gateway key password v1"


class Certificate(msgspec.Struct, frozen=True):
    """certificate, key: PEM files; password: of the key; fingerprint: SHA-256 of the DER form, 64 hex digits."""

    certificate: Path
    key: Path
    password: str
    fingerprint: str

    def __repr__(self) -> str:
        return f"Certificate({self.fingerprint})"


def server_context(certificate: Certificate) -> ssl.SSLContext:
    """What a listener with this certificate speaks. Blocking: it reads the files."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # Older ones have known breaks, and no client of ours speaks them.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(certificate.certificate, certificate.key, certificate.password)
    return context


def own_certificate(directory: Path, node_key: NodeKey) -> Certificate:
    """The certificate in `directory`, made anew when there is none that is ours and valid for a month more."""
    # Derived: whoever cannot open the node's key cannot serve in its name, and nobody has to keep another password.
    password = blake3(node_key.secret, derive_key_context=_CONTEXT).hexdigest()
    pem, key = directory / "gateway-cert.pem", directory / "gateway-key.pem"
    known = _load(pem, key, password)
    if known is None:
        known = _make(pem, key, password, node_key)
    fingerprint = hashlib.sha256(known.public_bytes(Encoding.DER)).hexdigest()
    return Certificate(pem, key, password, fingerprint)


def _load(pem: Path, key: Path, password: str) -> x509.Certificate | None:
    try:
        certificate = x509.load_pem_x509_certificate(pem.read_bytes())
        private = load_pem_private_key(key.read_bytes(), password.encode())
    except (OSError, ValueError, TypeError):
        return None  # none yet, or of another key: a new one is made
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return certificate if private.public_key() == certificate.public_key() and left > RENEW_BEFORE else None


def _make(pem: Path, key: Path, password: str, node_key: NodeKey) -> x509.Certificate:
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"intellect-node {node_key.address}")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    encryption = BestAvailableEncryption(password.encode())
    write_whole(key, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption), mode=0o600)
    write_whole(pem, certificate.public_bytes(Encoding.PEM), mode=0o600)
    return certificate
