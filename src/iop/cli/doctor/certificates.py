"""Certificates, keys and trust of one table, read and judged by the code that a role reads and judges them with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509

from iop.certificates import check_own, names_of, read_certificates, read_key
from iop.cli.doctor.checks import Check, Finding, fault, ok, warning
from iop.net.target import is_loopback
from iop.net.tls import TlsFiles, check_own_chain
from iop.process.config import listening_address
from iop.units import Identity

#: From when on the end of a certificate is worth a warning.
SOON: Final = timedelta(days=14)


@dataclass(frozen=True, slots=True)
class Presented:
    """What one table of a configuration presents to others.

    :ivar table: ``[tls]``.
    :ivar load: makes the TLS end of them as the role does; raises an ``IopError`` where it would.
    :ivar listeners: server endpoint strings where it is presented to those who dial.
    """

    table: str
    certificate: Path
    key: Path
    load: Callable[[], object]
    listeners: Sequence[str] = ()

    @property
    def loads(self) -> str:
        """The name of the check that certificate and key are usable together."""
        return f"{self.table} certificate and key"

    def checks(self, now_ms: Callable[[], int]) -> Iterator[Check]:
        """Whether files and dates are right, and, where it listens, the names."""
        certificate, key = f"{self.table} certificate", f"{self.table} key"
        yield Check(certificate, self._readable)
        yield Check(f"{self.table} validity", lambda: _validity(self.certificate, now_ms()), [certificate])
        yield Check(key, self._private)
        yield Check(self.loads, self._belong, [certificate, key])
        if self.listeners:
            yield Check(f"{self.table} names", self._names, [certificate])

    def _readable(self) -> Finding:
        read_certificates(self.certificate)
        return ok(f"{self.certificate} is a certificate")

    def _private(self) -> Finding:
        read_key(self.key)
        return ok(f"{self.key} is a private key that only this user can read")

    def _belong(self) -> Finding:
        self.load()
        return ok("the key is the certificate's")

    def _names(self) -> Finding:
        names = names_of(read_certificates(self.certificate)[0])
        dns = names.get_values_for_type(x509.DNSName)
        addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
        if not dns and not addresses:
            return fault(
                f"{self.certificate} has no DNS name and no address, so nobody who dials can verify it",
                "issue it with the names that others dial: iop pki issue … --dns NAME --ip ADDRESS",
            )
        listed = ", ".join((*dns, *addresses))
        here = set(dns) <= {"localhost"} and all(map(is_loopback, addresses))
        if here and not all(_on_loopback(listener) for listener in self.listeners):
            return warning(
                f"it listens for other machines, and the certificate is only for {listed}",
                "issue it with the names that others dial: iop pki issue … --dns NAME --ip ADDRESS",
            )
        return ok(f"to be dialled as {listed}")


@dataclass(frozen=True, slots=True)
class Mutual:
    """The files of one end of mutual TLS, and who its certificate has to speak for."""

    presented: Presented
    trust: Path
    identity: Identity

    @property
    def needs(self) -> tuple[str, str]:
        """The checks without which no peer can be met."""
        return self.presented.loads, f"{self.presented.table} chain"

    def checks(self, now_ms: Callable[[], int]) -> Iterator[Check]:
        """Those of what is presented, and whether peers of the same deployment would accept it."""
        presented, table, trust = self.presented, self.presented.table, f"{self.presented.table} trust"
        certificate, validity = f"{table} certificate", f"{table} validity"
        yield Check(trust, lambda: _validity(self.trust, now_ms()))
        yield from presented.checks(now_ms)
        yield Check(f"{table} identity", self._own, [certificate])
        yield Check(f"{table} chain", self._chain, [certificate, validity, trust])

    def _own(self) -> Finding:
        identity = self.identity
        check_own(
            self.presented.certificate, trust_domain=identity.trust_domain, role=identity.role, name=identity.name
        )
        return ok(identity.uri())

    def _chain(self) -> Finding:
        check_own_chain(TlsFiles(self.presented.certificate, self.presented.key, self.trust))
        return ok(f"leads to {self.trust}")


def _validity(path: Path, now_ms: int) -> Finding:
    """Whether every certificate of a PEM file is valid now, and for a while."""
    certificates = read_certificates(path)
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    begin = max(each.not_valid_before_utc for each in certificates)
    end = min(each.not_valid_after_utc for each in certificates)
    if now < begin:
        return fault(
            f"{path} is valid from {_moment(begin)} on, and this machine's clock says {_moment(now)}",
            "set the clock, on this machine or on the one that issued it; or wait",
        )
    if now > end:
        return fault(
            f"{path} ended on {_moment(end)}, and this machine's clock says {_moment(now)}",
            "issue a new one with iop pki issue, or set the clock if that is wrong; then send the role SIGHUP",
        )
    days = (end - now).days
    if end - now < SOON:
        left = "less than a day" if days == 0 else "1 day" if days == 1 else f"{days} days"
        return warning(
            f"{path} ends on {_moment(end)}, in {left}",
            "issue a new one with iop pki issue, then send the role SIGHUP",
        )
    return ok(f"{path} is valid until {_moment(end)}")


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


def _on_loopback(listener: str) -> bool:
    interface, _ = listening_address(listener)
    return interface == "localhost" or is_loopback(interface)
