"""Credentials as files: what is accepted, and what each mistake is called."""

from __future__ import annotations

import ipaddress
import re
import shutil
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vertizo.core.errors import ConfigError, RunError
from vertizo.network.transport import certificates
from vertizo.network.transport.authority import issue
from vertizo.network.transport.certificates import Credentials
from vertizo.network.transport.grpc import GrpcChannel, GrpcServer
from vertizo.network.transport.signing import sign, verify

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
PEM = serialization.Encoding.PEM
PLAIN = serialization.NoEncryption()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    issue(tmp_path / "made", "holder", ["bank", "shop"], ["holder.example", "10.0.0.1"], 30)
    return tmp_path / "made"


def line(folder: Path) -> str:
    """The one line that loading ends with."""
    with pytest.raises(ConfigError) as error:
        Credentials.load(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


def signed(
    names: list[str],
    key: Key,
    by: tuple[str, Key] | None = None,
    authority: bool = False,
    begins: datetime | None = None,
    days: int = 30,
) -> x509.Certificate:
    """A certificate made by hand, as another organisation's authority would."""

    def name(of: list[str]) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one) for one in of])

    begins = datetime.now(UTC) - timedelta(hours=1) if begins is None else begins
    issuer, signer = (names, key) if by is None else ([by[0]], by[1])
    return (
        x509.CertificateBuilder()
        .subject_name(name(names))
        .issuer_name(name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), True)
        .sign(signer, hashes.SHA256())
    )


def store(folder: Path, chain: list[x509.Certificate], root: x509.Certificate, key: Key) -> Path:
    folder.mkdir()
    (folder / "authority.pem").write_bytes(root.public_bytes(PEM))
    (folder / "certificate.pem").write_bytes(b"".join(one.public_bytes(PEM) for one in chain))
    kind = serialization.PrivateFormat.TraditionalOpenSSL
    (folder / "key.pem").write_bytes(key.private_bytes(PEM, kind, PLAIN))
    return folder


def test_what_is_issued_can_be_loaded(folder: Path) -> None:
    for name in ("holder", "bank", "shop"):
        mine = Credentials.load(folder / name)
        assert mine.name == name
        assert timedelta(days=29) < mine.expires - datetime.now(UTC) <= timedelta(days=30)
        assert mine.authority == (folder / "authority" / "authority.pem").read_bytes()
        assert "KEY" not in repr(mine)


def test_a_server_and_members_have_one_use_each(folder: Path) -> None:
    holder, bank = (
        x509.load_pem_x509_certificate((folder / name / "certificate.pem").read_bytes())
        for name in ("holder", "bank")
    )

    def uses(certificate: x509.Certificate) -> list[x509.ObjectIdentifier]:
        return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)

    assert uses(holder) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert uses(bank) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    hosts = holder.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert hosts.get_values_for_type(x509.DNSName) == ["holder.example", "holder"]
    assert hosts.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.0.0.1")]
    Credentials.load(folder / "holder").check_use(serving=True)
    Credentials.load(folder / "bank").check_use(serving=False)
    with pytest.raises(ConfigError, match="of 'holder' is for a server only"):
        Credentials.load(folder / "holder").check_use(serving=False)


def test_parties_are_added_under_the_same_authority(folder: Path) -> None:
    before = (folder / "authority" / "key.pem").read_bytes()
    assert [one.name for one in issue(folder, None, ["clinic"], [], 30)] == ["clinic"]
    assert (folder / "authority" / "key.pem").read_bytes() == before
    clinic, bank = (Credentials.load(folder / name) for name in ("clinic", "bank"))
    assert clinic.authority == bank.authority
    for name in ("authority", "holder", "bank", "clinic"):  # keys are for their owners' eyes
        assert stat.S_IMODE((folder / name / "key.pem").stat().st_mode) == 0o600
    assert not list(folder.glob(".*"))  # no drafts


def test_wishes_that_cannot_be_met(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    for server, members, hosts, days, text in (
        (None, ["bank"], [], 30, "bank is there already and is not overwritten"),
        (None, [], [], 30, "no party was named"),
        (None, ["new", "new"], [], 30, "'new' was named 2 times"),
        (None, ["../new"], [], 30, "'../new' cannot be a party's name"),
        (None, ["authority"], [], 30, "'authority' cannot be a party's name"),
        (None, ["n" * 64], [], 30, "up to 63"),
        (None, ["new"], ["a.example"], 30, "which go with a server"),
        ("new", [], ["a.example:443"], 30, "'a.example:443' is neither a host name"),
        (None, ["new"], [], 0, "days is 0"),
        (None, ["new"], [], 3650, "the authority itself expires on"),
        (None, ["new"], [], 5000, "the authority holds for 3650"),
    ):
        with pytest.raises(ConfigError, match=re.escape(text)):
            issue(folder, server, members, hosts, days)
        assert sorted(folder.rglob("*")) == before, text


def test_each_mistake_in_a_folder_is_named(folder: Path) -> None:
    assert line(folder / "nobody").endswith("name the one with certificate.pem and key.pem")
    assert "name one party's own folder" in line(folder)
    bank, shop = folder / "bank", folder / "shop"
    good = {path: path.read_bytes() for path in bank.iterdir()}
    key = serialization.load_pem_private_key(good[bank / "key.pem"], None)
    locked = serialization.BestAvailableEncryption(b"secret")
    encrypted = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, locked)
    broken = b"-----BEGIN PRIVATE KEY-----\nAAAA\n"
    for name, content, words in (
        ("authority.pem", None, f"{bank / 'authority.pem'} is missing"),
        ("certificate.pem", b"\x30\x82", "certificate.pem is no certificate in PEM"),
        ("key.pem", broken, "key.pem is no private key in PEM"),
        ("key.pem", (shop / "key.pem").read_bytes(), "key.pem is not the key of "),
        ("key.pem", encrypted, "key.pem is encrypted; a key without a pass phrase is needed"),
    ):
        (bank / name).unlink() if content is None else (bank / name).write_bytes(content)
        assert words in line(bank)
        (bank / name).write_bytes(good[bank / name])
    Credentials.load(bank)


def test_another_authority_is_noticed(folder: Path, tmp_path: Path) -> None:
    issue(tmp_path / "other", None, ["bank"], [], 30)
    shutil.copy(tmp_path / "other/bank/authority.pem", folder / "bank" / "authority.pem")
    assert "certificate.pem was not signed by " in line(folder / "bank")  # though names are alike


def test_dates_are_told_with_the_clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.now(UTC)
    monkeypatch.setattr(certificates, "datetime", SimpleNamespace(now=lambda _: now))
    issue(tmp_path / "old", None, ["bank"], [], 30, now=now - timedelta(days=31))
    issue(tmp_path / "new", None, ["bank"], [], 30, now=now + timedelta(days=2))
    old, new = line(tmp_path / "old" / "bank"), line(tmp_path / "new" / "bank")
    assert f"expired on {now - timedelta(days=1):%Y-%m-%d}" in old
    assert f"clock says {now:%Y-%m-%d}" in old
    assert f"not valid before {now + timedelta(days=2) - timedelta(hours=1):%Y-%m-%d}" in new
    assert "which may be wrong" in new


def test_a_certificate_without_a_name_or_with_two_is_refused(tmp_path: Path) -> None:
    root_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = signed(["root"], root_key, authority=True)
    for names in ([], ["bank", "shop"]):
        chain = [signed(names, key, ("root", root_key))]
        place = store(tmp_path / str(len(names)), chain, root, key)
        assert f"has {len(names)} common names" in line(place)


def test_a_chain_leads_to_the_authority(tmp_path: Path) -> None:
    root_key, middle_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    key = rsa.generate_private_key(65537, 2048)
    root = signed(["root"], root_key, authority=True)
    middle = signed(["middle"], middle_key, ("root", root_key), authority=True, days=10)
    leaf = signed(["bank"], key, ("middle", middle_key))
    whole = Credentials.load(store(tmp_path / "whole", [leaf, middle], root, key))
    assert whole.name == "bank"
    assert whole.expires == middle.not_valid_after_utc
    whole.check_use(serving=True)  # no use was named in it
    files = (tmp_path / "whole" / name for name in ("certificate.pem", "authority.pem"))
    assert verify(b"words", sign(b"words", whole), *files, datetime.now(UTC)).name == "bank"
    assert "was not signed by" in line(store(tmp_path / "gap", [leaf], root, key))
    past = datetime.now(UTC) - timedelta(days=20)
    by = "root", root_key
    old = signed(["middle"], middle_key, by, authority=True, begins=past, days=10)
    assert "expired on" in line(store(tmp_path / "old", [leaf, old], root, key))


def test_a_start_up_kit_of_flare_can_be_loaded(tmp_path: Path) -> None:
    """As ``nvflare provision`` of release 2.9 lays it out: RSA keys, no extended key usage."""
    root_key = rsa.generate_private_key(65537, 2048)
    root = signed(["example_project"], root_key, authority=True)
    for name, stem in (("server1", "server"), ("site-1", "client")):
        key = rsa.generate_private_key(65537, 2048)
        startup = tmp_path / name / "startup"
        startup.parent.mkdir()
        (tmp_path / name / "readme.txt").write_text("a kit\n")
        store(startup, [signed([name], key, ("example_project", root_key))], root, key)
        for ours, theirs in (
            ("authority.pem", "rootCA.pem"),
            ("certificate.pem", f"{stem}.crt"),
            ("key.pem", f"{stem}.key"),
        ):
            (startup / ours).rename(startup / theirs)
        assert Credentials.load(tmp_path / name) == Credentials.load(startup)
        assert Credentials.load(startup).name == name
        (startup / "rootCA.pem").unlink()
        assert "rootCA.pem is missing" in line(tmp_path / name)


PROJECT = """\
api_version: 3
name: trial
participants:
  - {name: server1, type: server, org: one, fed_learn_port: 8002}
  - {name: site-1, type: client, org: two}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {config_folder: config}
  - path: nvflare.lighter.impl.cert.CertBuilder
"""


@pytest.mark.full
def test_a_kit_that_flare_provisions_is_good_for_both_sides(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="nvflare is not installed")
    (tmp_path / "project.yml").write_text(PROJECT)
    command = [sys.executable, "-m", "nvflare.lighter.provision", "-p", "project.yml", "-w", "w"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    kits = tmp_path / "w" / "trial" / "prod_00"
    holder, site = Credentials.load(kits / "server1"), Credentials.load(kits / "site-1")
    assert (holder.name, site.name) == ("server1", "site-1")
    greeting: Any = SimpleNamespace(
        members=("site-1",),
        largest_ask=1000,
        ask=lambda member, frame, answer: answer(frame + b", " + member.encode()),
        gone=lambda member: None,
    )
    with GrpcServer(greeting, listen="localhost:0", credentials=holder) as server:
        channel = GrpcChannel(f"localhost:{server.port}", site, server_name="server1")
        assert channel.ask(b"hello") == b"hello, site-1"
        channel.close()
        posing = GrpcChannel(f"localhost:{server.port}", site)
        with pytest.raises(RunError, match="for another host name"):
            posing.ask(b"hello")
        posing.close()
