"""``iop pki``: a certificate authority, the certificates of the roles, and what is in them."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from cryptography import x509
from rich.console import Console
from rich.text import Text

from iop.certificates import identity_of, names_of, read_certificates, read_key
from iop.crypto.pki import DEFAULT_DAYS, LONGEST_DAYS, Authority, authority_paths, leaf_paths
from iop.errors import AlreadyExists, FileRefused, IdentityRefused
from iop.units import Identity, Role, rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_DAY_MS: Final = 24 * 60 * 60 * 1000
#: Days before the end from which a certificate is shown as a worry.
_SOON_DAYS: Final = 14

_directory = click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("pki"),
    show_default=True,
    help="Folder of the authority.",
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")


def _addresses(
    context: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> list[IPv4Address | IPv6Address]:
    """The values of ``--ip``, read."""
    read = []
    for value in values:
        try:
            read.append(ip_address(value))
        except ValueError:
            raise click.BadParameter(f"{value!r} is not an IP address", context, parameter) from None
    return read


@click.group()
def pki() -> None:
    """Make a certificate authority, issue the roles' certificates, see when they expire.

    \b
    Examples:
      iop pki init --directory pki --trust-domain iop.example
      iop pki issue --directory pki --role control-plane --name cp1 --dns cp.iop.example
      iop pki issue --directory pki --role edge --name edge1 --dns localhost --ip 127.0.0.1
      iop pki issue --directory pki --role node --name node1
      iop pki inspect pki
    """


@pki.command(short_help="Make a certificate authority.")
@_directory
@click.option("--trust-domain", required=True, help="What all identities begin with: spiffe://TRUST-DOMAIN/iop/…")
@_as_json
def init(directory: Path, trust_domain: str, as_json: bool) -> None:
    """Make a certificate authority: ca.pem, to be trusted by every role, and ca.key, to be kept from all of them.

    \b
    Example:
      iop pki init --directory pki --trust-domain iop.example
    """
    authority = Authority.create(directory, trust_domain, _now_ms())
    paths = authority_paths(directory)
    _tell_made(paths.certificate, paths.key, authority.certificate, f"spiffe://{trust_domain}", as_json)
    if not as_json:
        click.echo("Every role trusts ca.pem. Keep ca.key offline: whoever has it can be any role.")


@pki.command(short_help="Issue the certificate of a role's instance.")
@_directory
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True, help="Whose it is.")
@click.option("--name", required=True, help="Its name: 1 to 63 of a-z 0-9 . _ -")
@click.option("--dns", multiple=True, help="DNS name others reach it by; may be repeated.")
@click.option(
    "--ip",
    "addresses",
    multiple=True,
    metavar="ADDRESS",
    callback=_addresses,
    help="IP address others reach it by; may be repeated.",
)
@click.option(
    "--days",
    type=click.IntRange(1, LONGEST_DAYS),
    default=DEFAULT_DAYS,
    show_default=True,
    help="How long it is valid.",
)
@_as_json
def issue(
    directory: Path,
    role: str,
    name: str,
    dns: Sequence[str],
    addresses: Sequence[IPv4Address | IPv6Address],
    days: int,
    as_json: bool,
) -> None:
    """Issue the certificate of a role's instance: ROLE-NAME.pem and ROLE-NAME.key (mode 0600) beside the authority.

    Others connect to Control Planes and Edges, so those need at least one --dns or --ip; the other roles have none.

    \b
    Examples:
      iop pki issue --role edge --name edge2 --dns localhost --ip 127.0.0.1
      iop pki issue --role node --name node2 --days 30
    """
    authority = Authority.load(directory)
    leaf = authority.issue(Role(role), name, dns=dns, addresses=addresses, days=days, now_ms=_now_ms())
    paths = leaf_paths(directory, Role(role), name)
    if paths.certificate.exists():
        raise AlreadyExists(
            f"{paths.certificate} exists already",
            hint="to renew it, move it away first; whoever uses it keeps working until then",
        )
    leaf.write(paths.certificate, paths.key)
    _tell_made(paths.certificate, paths.key, leaf.certificate, identity_of(leaf.certificate).uri(), as_json)


@pki.command(short_help="Show what certificates say and when they expire.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@_as_json
def inspect(paths: Sequence[Path], as_json: bool) -> None:
    """Show what the certificates in PATHS (files, or folders with .pem files) say and when they expire.

    A key is "private" if it lies beside its certificate, belongs to it and is closed to others. Exit code 1: something
    is wrong with a file.

    \b
    Examples:
      iop pki inspect pki
      iop pki inspect --json pki/edge-edge1.pem
    """
    findings = [_inspect(path, _now_ms()) for path in _files(paths)]
    if not findings:
        raise FileRefused(
            f"there is no .pem file in {' or '.join(map(str, paths))}", hint="name a certificate, or another folder"
        )
    if as_json:
        click.echo(json.dumps({"certificates": [asdict(finding) for finding in findings]}))
    else:
        _print(findings)
    if any(finding.problem for finding in findings):
        sys.exit(1)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a certificate file says; ``problem`` is what is wrong with it or with the key beside it, mostly nothing."""

    file: str
    problem: str = ""
    identity: str | None = None
    role: str | None = None
    name: str | None = None
    names: tuple[str, ...] = ()
    issuer: str = ""
    expires: str = ""
    #: Whole days left, below 0 once it has expired.
    days: int = 0
    #: ``private``, ``none`` (there is no such file beside it), or ``refused``.
    key: str = "none"


def _inspect(path: Path, now_ms: int) -> Finding:
    try:
        certificate = read_certificates(path)[0]
    except FileRefused as error:
        return Finding(str(path), error.message)
    identity = _identity(certificate)
    key, problem = _key_state(path.with_suffix(".key"), certificate)
    expires_ms = int(certificate.not_valid_after_utc.timestamp() * 1000)
    return Finding(
        file=str(path),
        problem=problem,
        identity=identity.uri() if identity else None,
        role=identity.role.value if identity else None,
        name=identity.name if identity else None,
        names=_server_names(certificate),
        issuer=certificate.issuer.rfc4514_string(),
        expires=rfc3339(expires_ms),
        days=math.floor((expires_ms - now_ms) / _DAY_MS),
        key=key,
    )


def _identity(certificate: x509.Certificate) -> Identity | None:
    """None for certificates that are nobody's, as an authority's."""
    try:
        return identity_of(certificate)
    except IdentityRefused:
        return None


def _server_names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = names_of(certificate)
    except IdentityRefused:
        return ()
    return (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress)))


def _key_state(path: Path, certificate: x509.Certificate) -> tuple[str, str]:
    """The state of the key beside a certificate, and what is wrong with it."""
    if not path.exists():
        return "none", ""
    try:
        key = read_key(path)
    except FileRefused as error:
        return "refused", f"{error.message}: {error.hint}"
    if key.public_key() != certificate.public_key():
        return "refused", f"{path} is the key of another certificate"
    return "private", ""


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(path.glob("*.pem"))
        else:
            yield path


def _print(findings: Sequence[Finding]) -> None:
    console = Console(highlight=False)
    for finding in findings:
        console.print(_plain(finding.file, style="bold"), soft_wrap=True)
        if finding.expires:
            style = "red" if finding.days < 0 else "yellow" if finding.days < _SOON_DAYS else "green"
            for what, said in (
                ("identity", _plain(finding.identity or "none")),
                ("names", _plain(" ".join(finding.names) or "none")),
                ("issuer", _plain(finding.issuer)),
                ("expires", Text(f"{_days(finding.days)}, {finding.expires[:10]}", style=style)),
                ("key", Text(finding.key, style="red" if finding.key == "refused" else "")),
            ):
                console.print(Text(f"  {what:<9} ").append_text(said), soft_wrap=True)
        if finding.problem:
            console.print(_plain(f"! {finding.problem}", style="red"), soft_wrap=True)


def _plain(text: str, style: str = "") -> Text:
    """What a certificate says, without markup and without what a terminal would obey."""
    return Text("".join(character if character.isprintable() else "?" for character in text), style=style)


def _days(days: int) -> str:
    if days < 0:
        return f"expired {-days} {'day' if days == -1 else 'days'} ago"
    return f"in {days} {'day' if days == 1 else 'days'}"


def _tell_made(certificate: Path, key: Path, made: x509.Certificate, identity: str, as_json: bool) -> None:
    expires = rfc3339(int(made.not_valid_after_utc.timestamp() * 1000))
    if as_json:
        click.echo(
            json.dumps(
                {
                    "certificate": str(certificate.absolute()),
                    "key": str(key.absolute()),
                    "identity": identity,
                    "expires": expires,
                }
            )
        )
        return
    click.echo(f"{identity}, valid until {made.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    click.echo(f"  certificate {certificate}")
    click.echo(f"  key         {key}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
