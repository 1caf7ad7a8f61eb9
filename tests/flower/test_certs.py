"""Keys and certificates: what is in them, who may read them, and that none is ever overwritten."""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedfew.cli import flower_certs
from fedfew.flower import certs
from tests.flower.support import clock_set

HOSTS = ["superlink.example.org", "127.0.0.1", "::1"]
SITES = ["north", "south"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("federation") / "certs"
    before = os.umask(0o022)
    try:
        certs.write(folder, HOSTS, SITES, server_days=30, ca_days=100)
    finally:
        os.umask(before)
    return folder


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_private_keys_are_closed_to_others_and_only_they(folder: Path) -> None:
    modes = {name: stat.S_IMODE((folder / name).stat().st_mode) for name in contents(folder)}
    private = {"ca.key", "server.key", "sites/north", "sites/south"}
    assert modes == {name: 0o600 if name in private else 0o644 for name in modes}
    assert private < set(modes)


def test_ca_may_sign_certificates_and_nothing_below_it_may(folder: Path) -> None:
    authority = certificate(folder / "ca.crt").extensions
    basic = authority.get_extension_for_class(x509.BasicConstraints)
    assert basic.critical
    assert basic.value == x509.BasicConstraints(ca=True, path_length=0)
    usage = authority.get_extension_for_class(x509.KeyUsage).value
    assert (usage.key_cert_sign, usage.digital_signature) == (True, False)
    below = certificate(folder / "server.pem").extensions
    assert not below.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not below.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_server_certificate_names_its_hosts_for_a_server_only_and_is_signed_by_the_ca(folder: Path) -> None:
    server, authority = certificate(folder / "server.pem"), certificate(folder / "ca.crt")
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["superlink.example.org", "localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")]
    use = server.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(use) == [ExtendedKeyUsageOID.SERVER_AUTH]
    server.verify_directly_issued_by(authority)
    key = serialization.load_pem_private_key((folder / "server.key").read_bytes(), None)
    assert key.public_key() == server.public_key()


@pytest.mark.parametrize(("name", "days"), [("ca.crt", 100), ("server.pem", 30)])
def test_validity_begins_a_little_earlier_and_ends_after_the_days_given(folder: Path, name: str, days: int) -> None:
    it, now = certificate(folder / name), datetime.now(UTC)
    assert timedelta(minutes=9) < now - it.not_valid_before_utc < timedelta(minutes=30)
    assert timedelta(days=days) - timedelta(minutes=30) < it.not_valid_after_utc - now < timedelta(days=days)


def test_python_own_tls_takes_the_chain_and_refuses_another_name_and_another_ca(folder: Path, tmp_path: Path) -> None:
    certs.write(tmp_path / "other", ["localhost"])
    shake = _handshake(folder)
    shake(folder / "ca.crt", "superlink.example.org")
    shake(folder / "ca.crt", "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake(folder / "ca.crt", "evil.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(tmp_path / "other" / "ca.crt", "superlink.example.org")


def _handshake(folder: Path):
    """A TLS handshake in memory, checked as strictly as Python can."""

    def shake(authority: Path, host: str) -> None:
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        serving.load_cert_chain(folder / "server.pem", folder / "server.key")
        asking = ssl.create_default_context(cafile=authority)
        asking.verify_flags |= ssl.VERIFY_X509_STRICT
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = serving.wrap_bio(to_server, to_client, server_side=True)
        client = asking.wrap_bio(to_client, to_server, server_hostname=host)
        done = set()
        while len(done) < 2:
            for end in (client, server):
                try:
                    end.do_handshake()
                    done.add(end)
                except ssl.SSLWantReadError:
                    continue

    return shake


def test_site_keys_are_p384_in_openssh_format_and_belong_together(folder: Path) -> None:
    for name in SITES:
        private = serialization.load_ssh_private_key((folder / "sites" / name).read_bytes(), None)
        text = (folder / "sites" / f"{name}.pub").read_bytes()
        public = serialization.load_ssh_public_key(text)
        assert isinstance(public, ec.EllipticCurvePublicKey)
        assert isinstance(public.curve, ec.SECP384R1)
        assert private.public_key() == public
        assert text.startswith(b"ecdsa-sha2-nistp384 ")
        assert text.endswith(f" {name}\n".encode())


def test_a_second_call_changes_nothing_and_adds_what_is_new(tmp_path: Path) -> None:
    first = certs.write(tmp_path, ["localhost"], ["north"])
    before = contents(tmp_path)
    again = certs.write(tmp_path, ["localhost"], ["north", "south"])
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"sites/south", "sites/south.pub"}
    assert not any(file.kept for file in first)
    assert {file.path.name for file in again if not file.kept} == {"south", "south.pub"}


def test_renewal_replaces_the_server_pair_only_and_the_old_ca_vouches_for_it(tmp_path: Path) -> None:
    certs.write(tmp_path, ["localhost"], ["north"])
    before = contents(tmp_path)
    certs.write(tmp_path, ["superlink.example.org"], renew_server=True)
    after = contents(tmp_path)
    assert {name for name in after if after[name] != before[name]} == {"server.pem", "server.key"}
    assert set(after) == set(before)
    assert stat.S_IMODE((tmp_path / "server.key").stat().st_mode) == 0o600
    certificate(tmp_path / "server.pem").verify_directly_issued_by(certificate(tmp_path / "ca.crt"))
    names = certificate(tmp_path / "server.pem").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["superlink.example.org", "localhost"]


def test_a_site_alone_makes_its_own_pair_and_no_ca(tmp_path: Path) -> None:
    certs.write(tmp_path, sites=["north"])
    assert set(contents(tmp_path)) == {"sites/north", "sites/north.pub"}


def test_a_public_key_whose_private_half_is_at_its_site_is_left_alone(tmp_path: Path) -> None:
    certs.write(tmp_path, sites=["north"])
    (tmp_path / "sites" / "north").unlink()
    before = contents(tmp_path)
    assert [file.path.name for file in certs.write(tmp_path, sites=["north"])] == ["north.pub"]
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "nothing to write"),
        ({"hosts": ["https://superlink"]}, "host must be a host name or an IP address"),
        ({"hosts": ["superlink:8000"]}, "host must be a host name or an IP address"),
        ({"hosts": ["192.0.2.300"]}, "host must be a host name or an IP address, .* not '192.0.2.300'"),
        ({"sites": ["../north"]}, "site must be"),
        ({"sites": ["north.pub"]}, "site must be"),
        ({"hosts": ["localhost"], "server_days": 0}, "server-days must be a whole number ≥ 1, not 0"),
        ({"hosts": ["localhost"], "ca_days": 10, "server_days": 10}, r"server-days must be less than ca-days \(10\), not 10"),
        ({"sites": ["north"], "renew_server": True}, "renew-server needs the names"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(tmp_path: Path, arguments: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        certs.write(tmp_path / "certs", **arguments)
    assert not (tmp_path / "certs").exists()


@pytest.mark.parametrize(
    ("missing", "again", "words"),
    [
        ("ca.crt", {"hosts": ["localhost"]}, "ca.key exists but"),
        ("server.pem", {"hosts": ["localhost"]}, "server.key exists but"),
        ("sites/north.pub", {"sites": ["north"]}, "sites/north exists but"),
        ("ca.key", {"hosts": ["localhost"], "renew_server": True}, "ca.key does not exist"),
        (None, {"hosts": ["elsewhere"]}, "server.pem does not name elsewhere"),
        (None, {"hosts": ["localhost"], "renew_server": True, "server_days": 9999}, "server-days must end before the CA does"),
    ],
)
def test_half_a_folder_is_refused_and_left_as_it_is(tmp_path: Path, missing: str | None, again: dict, words: str) -> None:
    certs.write(tmp_path, ["localhost"], ["north"])
    if missing:
        (tmp_path / missing).unlink()
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=words):
        certs.write(tmp_path, **again)
    assert contents(tmp_path) == before


def test_the_key_of_another_ca_is_refused(tmp_path: Path) -> None:
    certs.write(tmp_path / "a", ["localhost"])
    certs.write(tmp_path / "b", ["localhost"])
    (tmp_path / "a" / "ca.key").write_bytes((tmp_path / "b" / "ca.key").read_bytes())
    with pytest.raises(ValueError, match=r"ca\.key is not the key of"):
        certs.write(tmp_path / "a", ["localhost"], renew_server=True)


@pytest.mark.parametrize(
    ("days", "words"),
    [
        (11, r"ca\.crt expired on .* \(this machine's clock says .*\): start again in another folder"),
        (3, r"server\.pem expired on .*: 'fedfew flower certs --host … --renew-server' writes a new one"),
        (-1, r"ca\.crt is not valid before .*, but this machine's clock says .*: set the clock, or"),
    ],
)
def test_certificates_that_are_not_valid_now_are_named(tmp_path: Path, monkeypatch, days: int, words: str) -> None:
    certs.write(tmp_path, ["localhost"], ca_days=10, server_days=2)
    clock_set(monkeypatch, days)
    with pytest.raises(ValueError, match=words):
        certs.write(tmp_path, ["localhost"])


def test_a_certificate_that_expires_soon_is_named(tmp_path: Path, monkeypatch, capsys) -> None:
    certs.write(tmp_path, ["localhost"], server_days=365)
    certs.write(tmp_path, ["localhost"])
    assert capsys.readouterr().err == ""
    clock_set(monkeypatch, 365 - 29)
    certs.write(tmp_path, ["localhost"])
    assert "server.pem expires on" in capsys.readouterr().err


def call(*words: str) -> Result:
    app = typer.Typer()
    app.command()(flower_certs.certs)
    return CliRunner().invoke(app, list(words))


def test_the_command_prints_where_each_file_goes_and_what_to_type(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    result = call("--host", "::1", "--site", "north", "--folder", str(folder))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    written = [line.split()[1] for line in lines if line.startswith("written")]
    assert {Path(path).relative_to(folder).as_posix() for path in written} == set(contents(folder))
    assert any(line.startswith(f"flwr supernode register {folder}/sites/north.pub") for line in lines)
    assert any("--superlink [::1]:8443" in line for line in lines)
    assert call("--host", "::1", "--folder", str(folder)).stdout.splitlines()[0].startswith("kept")


def test_the_command_explains_mistakes_and_can_print_json(tmp_path: Path) -> None:
    result = call("--host", "a b", "--folder", str(tmp_path))
    assert result.exit_code == 2
    assert "host must be a host name or an IP address" in result.stderr
    result = call("--site", "north", "--folder", str(tmp_path), "--json")
    assert [Path(file["path"]).name for file in json.loads(result.stdout)["files"]] == ["north", "north.pub"]
