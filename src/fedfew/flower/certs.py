"""Keys and certificates for a federation on Flower: a CA, the SuperLink's certificate, and a key pair per site.

    folder/ca.crt           for everybody: verifies the SuperLink's certificate
    folder/ca.key           secret, best not on the SuperLink's machine: with it one can impersonate the SuperLink
    folder/server.pem, .key for the SuperLink
    folder/sites/NAME       for site NAME alone: with it one can impersonate the site
    folder/sites/NAME.pub   to be registered with the SuperLink

Nothing that exists is ever overwritten, except the server's pair when its renewal is asked for. All keys are ECDSA on P-384.
"""

from __future__ import annotations

import ipaddress
import os
import re
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_DAYS, SERVER_DAYS = 3650, 365
EXPIRES_SOON = timedelta(days=30)
TIME = "%Y-%m-%d %H:%M UTC"
LOOPBACK = ("localhost", "127.0.0.1", "::1")  # programs on the SuperLink's machine connect to these
CLOCK_SKEW = timedelta(minutes=10)  # a site whose clock is slow accepts a new certificate all the same
_SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HOST_NAME = re.compile(r"(?!(.*\.)?[0-9]+$)(?!-)[A-Za-z0-9-]{1,63}(\.(?!-)[A-Za-z0-9-]{1,63})*")


@dataclass(frozen=True)
class File:
    """One file of the folder, and whether it existed before."""

    path: Path
    about: str
    kept: bool


def write(
    folder: Path,
    hosts: Sequence[str] = (),
    sites: Sequence[str] = (),
    *,
    server_days: int = SERVER_DAYS,
    ca_days: int = CA_DAYS,
    renew_server: bool = False,
) -> list[File]:
    """Write what is missing of the CA and server certificate (for ``hosts``) and of the key pairs (of ``sites``)."""
    if not hosts and not sites:
        raise ValueError("nothing to write: give --host (CA and server certificate), --site (a site's key pair), or both")
    for name in sites:
        if not _SITE_NAME.fullmatch(name) or name.endswith(".pub"):
            raise ValueError(f"site must be letters, digits, '.', '_' and '-' (and not end in .pub), not {name!r}")
    for setting, days in (("server-days", server_days), ("ca-days", ca_days)):
        if days < 1:
            raise ValueError(f"{setting} must be a whole number ≥ 1, not {days}")
    if renew_server and not hosts:
        raise ValueError("renew-server needs the names of the SuperLink: give --host")
    if server_days >= ca_days and not (folder / "ca.crt").exists():
        raise ValueError(f"server-days must be less than ca-days ({ca_days}), not {server_days}")
    names = [_subject_alternative(host) for host in dict.fromkeys([*hosts, *LOOPBACK])] if hosts else []
    files: list[File] = []
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if names:
        files += _authority(folder, ca_days)
        files += _server(folder, names, server_days, renew_server)
    for name in dict.fromkeys(sites):
        files += _site(folder / "sites", name)
    return files


def check_valid_now(path: Path) -> None:
    """Refuse a certificate that has expired or is not valid yet, by this machine's clock; print a warning before it expires."""
    certificate, now = x509.load_pem_x509_certificate(path.read_bytes()), datetime.now(UTC)
    since, until, clock = (
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        f"this machine's clock says {now:{TIME}}",
    )
    is_ca = certificate.subject == certificate.issuer
    remedy = "start again in another folder" if is_ca else "'fedfew flower certs --host … --renew-server' writes a new one"
    if now < since:
        raise ValueError(f"{path} is not valid before {since:{TIME}}, but {clock}: set the clock, or {remedy}")
    if now > until:
        raise ValueError(f"{path} expired on {until:{TIME}} ({clock}): {remedy}")
    if until - now < EXPIRES_SOON:
        print(f"{path} expires on {until:{TIME}}: {remedy}", file=sys.stderr)


def _authority(folder: Path, days: int) -> list[File]:
    key_path, path = folder / "ca.key", folder / "ca.crt"
    about = "certificate of the CA: for every site and for whoever starts runs"
    if path.exists():
        check_valid_now(path)
        return [File(path, about, kept=True)]
    if key_path.exists():
        raise ValueError(f"{key_path} exists but {path} does not. Put it back, or start again in another folder")
    key = ec.generate_private_key(ec.SECP384R1())
    name = _common_name("fedfew CA")
    certificate = (
        _certificate(name, name, key.public_key(), key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    _create(key_path, _private_pem(key), 0o600)
    _create(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return [File(key_path, "key of the CA: keep it off the network", kept=False), File(path, about, kept=False)]


def _server(folder: Path, names: list[x509.GeneralName], days: int, renew: bool) -> list[File]:
    key_path, path = folder / "server.key", folder / "server.pem"
    about = {path: "certificate of the SuperLink", key_path: "its key: for the SuperLink alone"}
    if path.exists() and not renew:
        check_valid_now(path)
        there = x509.load_pem_x509_certificate(path.read_bytes())
        listed = there.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        missing = [str(name.value) for name in names if name not in listed]
        if missing:
            raise ValueError(f"{path} does not name {', '.join(missing)}. --renew-server writes another for the hosts you give")
        return [File(one, what, kept=True) for one, what in about.items()]
    if key_path.exists() and not path.exists():
        raise ValueError(f"{key_path} exists but {path} does not. Put it back, or move {key_path} away")
    authority, signer = _signing_authority(folder)
    if datetime.now(UTC) + timedelta(days=days) > authority.not_valid_after_utc:
        raise ValueError(
            f"server-days must end before the CA does ({authority.not_valid_after_utc:%Y-%m-%d}), not after {days} days"
        )
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _certificate(_common_name("fedfew SuperLink"), authority.subject, key.public_key(), signer.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(signer, hashes.SHA384())
    )
    put = _replace if renew else _create
    put(key_path, _private_pem(key), 0o600)
    put(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return [File(one, what, kept=False) for one, what in about.items()]


def _signing_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The certificate of the CA, and the key that it signs with."""
    key_path = folder / "ca.key"
    if not key_path.exists():
        raise ValueError(f"{key_path} does not exist, and nothing can be signed without it. Put it back for this command")
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    signer = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or signer.public_key() != authority.public_key():
        raise ValueError(f"{key_path} is not the key of {folder / 'ca.crt'}")
    return authority, signer


def _site(folder: Path, name: str) -> list[File]:
    path, public_path = folder / name, folder / f"{name}.pub"
    about = {path: f"key of site {name}: for that site alone", public_path: f"public key of site {name}, to be registered"}
    if public_path.exists():  # the private one should have been moved to its site
        return [File(one, what, kept=True) for one, what in about.items() if one.exists()]
    if path.exists():
        raise ValueError(f"{path} exists but {public_path} does not. 'ssh-keygen -y -f {path} > {public_path}' makes it again")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(ec.SECP384R1())
    no_password = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, no_password)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _create(path, private, 0o600)
    _create(public_path, public + f" {name}\n".encode(), 0o644)
    return [File(one, what, kept=False) for one, what in about.items()]


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, signer: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    """What the CA's and the server's certificate have in common."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _subject_alternative(host: str) -> x509.GeneralName:
    """An address as an address, a name as a name: a client checks the one it connects to."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if len(host) > 253 or not _HOST_NAME.fullmatch(host):
        raise ValueError(f"host must be a host name or an IP address, without scheme or port, not {host!r}")
    return x509.DNSName(host)


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    no_password = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_password)


def _create(path: Path, data: bytes, mode: int) -> None:
    """A new file with this mode from the start; an existing one is an error."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)


def _replace(path: Path, data: bytes, mode: int) -> None:
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    _create(fresh, data, mode)
    os.replace(fresh, path)
