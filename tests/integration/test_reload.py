"""SIGHUP under load: a running quickstart's real processes are given other files, and every request is answered."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from twisted.trial.unittest import SynchronousTestCase

from iop.certificates import read_certificates
from iop.cli.quickstart.home import TITLES, Home, Member
from iop.crypto.pki import Authority
from iop.files import write_atomic
from iop.units import Role
from tests.integration.quickstart import SECONDS, RunningQuickstart

BODY = json.dumps({"model": "stand-in", "messages": [{"role": "user", "content": "hello"}]}).encode()


class Load:
    """Callers of the Edge: one that connects for each request, and one that keeps its connection."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._address = document["edge_url"].removeprefix("https://")
        self.context = ssl.create_default_context(cafile=document["edge_ca"])
        self._token = Path(document["token_file"]).read_text().strip()
        self._enough = Event()
        #: The status of each answer, or what went wrong instead.
        self.outcomes: list[int | str] = []
        self._threads = [Thread(target=self._call, args=(keeps,)) for keeps in (False, True)]

    def connect(self) -> http.client.HTTPSConnection:
        """A connection to the Edge."""
        return http.client.HTTPSConnection(self._address, timeout=SECONDS, context=self.context)

    def ask(self, connection: http.client.HTTPSConnection) -> int:
        """The status of one request."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", BODY, headers)
        with connection.getresponse() as response:
            response.read()
            return response.status

    def start(self) -> None:
        """Begin to ask."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._enough.set()
        for thread in self._threads:
            thread.join()

    def more(self, count: int) -> None:
        """Wait for ``count`` more answers."""
        wanted = len(self.outcomes) + count
        wait_until(lambda: len(self.outcomes) >= wanted)

    def _call(self, keeps: bool) -> None:
        connection = self.connect()
        while not self._enough.is_set():
            try:
                self.outcomes.append(self.ask(connection))
            except (OSError, http.client.HTTPException) as error:
                self.outcomes.append(repr(error))
            if not keeps:
                connection.close()
        connection.close()


def now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = monotonic() + SECONDS
    while not holds():
        if monotonic() > deadline:
            raise AssertionError("it never came to that")
        sleep(0.01)


class ReloadTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.home = Home(Path(self.mktemp()))
        running = RunningQuickstart(self.home.root)
        self.addCleanup(running.kill)
        self.document = running.ready()
        self.load = Load(self.document)

    # -- what an operator does ----------------------------------------------------------------------------------------

    def authority(self) -> Authority:
        """One that nobody trusts yet, of the same trust domain."""
        return Authority.create(Path(self.mktemp()), Authority.load(self.home.pki).trust_domain, now_ms())

    def issue(self, role: Role, authority: Authority | None = None) -> x509.Certificate:
        """Replace a role's certificate and key by new ones, of another authority if there is one."""
        listens = role is not Role.NODE
        leaf = (authority or Authority.load(self.home.pki)).issue(
            role,
            Member(role).name,
            dns=["localhost"] if listens else [],
            addresses=[ip_address("127.0.0.1")] if listens else [],
            now_ms=now_ms(),
        )
        paths = self.home.certificate(Member(role))
        leaf.write(paths.certificate, paths.key)
        return read_certificates(paths.certificate)[0]

    def trust(self, *authorities: Authority) -> None:
        """Replace the file by which every role trusts."""
        pem = b"".join(each.certificate.public_bytes(Encoding.PEM) for each in authorities)
        write_atomic(self.home.ca, pem, 0o644)

    def change_route(self) -> None:
        """Make a change that drops every lease the Edge holds."""
        token = self.home.manage_token.read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        address = self.document["credential_url"].removeprefix("https://")
        connection = http.client.HTTPSConnection(address, timeout=SECONDS, context=self.load.context)
        connection.request("GET", "/v1/routes", headers=headers)
        (route,) = json.loads(connection.getresponse().read())["routes"]
        headers["If-Match"] = f'"{route["revision"]}"'
        body = json.dumps({key: route[key] for key in ("slot", "upstream_model", "selector")})
        connection.request("PUT", f"/v1/routes/{route['model']}", body, headers)
        self.assertEqual(connection.getresponse().status, 200)
        connection.close()

    def hang_up(self, role: Role, event: str = "role.reloaded") -> None:
        """SIGHUP, and wait for what the role says to it."""
        before = len(self.logged(role, event))
        os.kill(self.document["pids"][role.value], signal.SIGHUP)
        wait_until(lambda: len(self.logged(role, event)) > before)

    # -- what an operator sees ----------------------------------------------------------------------------------------

    def logged(self, role: Role, event: str) -> list[dict[str, Any]]:
        lines = self.home.log(role.value).read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.endswith("\n") and f'"{event}"' in line]
        return [line for line in found if line["event"] == event]

    def reasons(self, role: Role) -> list[str]:
        """Why a role is not ready."""
        record = json.loads((self.home.run / f"{role.value}.json").read_text())
        connection = http.client.HTTPConnection(record["addresses"]["status"], timeout=SECONDS)
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        reasons = json.loads(response.read())["reasons"]
        connection.close()
        assert isinstance(reasons, list)
        self.assertEqual(response.status, 503 if reasons else 200)
        return reasons

    def presented(self, url: str) -> x509.Certificate:
        """The certificate that a listener shows to a new connection."""
        host, port = url.removeprefix("https://").split(":")
        return x509.load_pem_x509_certificate(ssl.get_server_certificate((host, int(port))).encode())

    # -- tests --------------------------------------------------------------------------------------------------------

    def test_certificates_are_replaced_under_load(self) -> None:
        """P1: every role gets a new certificate, twice; no request fails, no live connection ends."""
        self.load.start()
        try:
            for _ in range(2):
                issued = {}
                for role in TITLES:
                    self.load.more(10)
                    issued[role] = self.issue(role)
                    self.hang_up(role)
                self.load.more(10)
                self.assertEqual(self.presented(self.document["edge_url"]), issued[Role.EDGE])
                self.assertEqual(self.presented(self.document["credential_url"]), issued[Role.CONTROL_PLANE])
        finally:
            self.load.stop()
        self.assertEqual(set(self.load.outcomes), {200})
        for role in TITLES:
            self.assertEqual((role, self.logged(role, "net.peer.ended")), (role, []))

    def test_authority_is_replaced(self) -> None:
        """P1, P11: no request fails while the old authority is trusted beside the new one and certificates change.

        When trust in the old one ends, connections made with its certificates end too, and come up with those of the
        new one; what the Control Plane judged under the old one does not count any more.
        """
        old, new = Authority.load(self.home.pki), self.authority()
        self.trust(old, new)
        self.load.context.load_verify_locations(cafile=str(self.home.ca))
        self.load.start()
        try:
            for role in TITLES:
                self.hang_up(role)
            for role in TITLES:
                self.issue(role, new)
                self.load.more(10)
                self.hang_up(role)
            self.load.more(10)
        finally:
            self.load.stop()
        self.assertEqual(set(self.load.outcomes), {200})
        for role in TITLES:
            self.assertEqual((role, self.logged(role, "net.peer.ended")), (role, []))
        self.trust(new)
        for role in TITLES:
            self.hang_up(role)
            wait_until(lambda: not any(map(self.reasons, TITLES)))
            self.change_route()
            # a connection that has just ended may be up again only now
            wait_until(lambda: self.load.ask(self.load.connect()) == 200)
        ended = {line["code"] for role in TITLES for line in self.logged(role, "net.peer.ended")}
        self.assertIn("identity_refused", ended)
        refused = [line["reason"] for line in self.logged(Role.CONTROL_PLANE, "control.lease.refused")]
        self.assertNotIn("attestation_refused", refused)

    def test_removed_trust_ends_live_connections(self) -> None:
        """P1: the Edge trusts another authority, so Node and Control Plane have to go, and its log says why."""
        kept = Authority.load(self.home.pki)
        self.trust(self.authority())
        self.hang_up(Role.EDGE)
        wait_until(lambda: len(self.logged(Role.EDGE, "net.peer.ended")) >= 2)
        ended = {line["peer"]: line["code"] for line in self.logged(Role.EDGE, "net.peer.ended") if line["peer"]}
        self.assertEqual(sorted(uri.split("/")[-2] for uri in ended), ["control-plane", "node"])
        self.assertEqual(set(ended.values()), {"identity_refused"})
        self.assertNotEqual(self.reasons(Role.EDGE), [])
        self.trust(kept)
        self.hang_up(Role.EDGE)
        wait_until(lambda: self.reasons(Role.EDGE) == [])
        self.assertEqual(self.load.ask(self.load.connect()), 200)

    def test_bad_file_changes_nothing(self) -> None:
        """P1: one bad file among good new ones keeps all that was; /readyz says so until a reload succeeds."""
        edge = self.home.certificate(Member(Role.EDGE))
        shown = {key: self.presented(self.document[key]) for key in ("edge_url", "credential_url")}
        for role, path in (
            (Role.EDGE, edge.key),
            (Role.NODE, self.home.pinned_issuers),
            (Role.CONTROL_PLANE, self.home.pinned_issuers),
            (Role.CONTROL_PLANE, self.home.ca),
        ):
            self.issue(role)
            good = path.with_suffix(".good")
            shutil.copy2(path, good)
            path.write_bytes(b"not what it should be")
            self.hang_up(role, "role.reload_refused")
            (reason,) = self.reasons(role)
            self.assertIn("the last reload was refused: ", reason)
            self.assertIn(path.name, reason)
            self.assertIn(
                self.logged(role, "role.reload_refused")[-1]["failure"]["code"], ("bad_config", "file_refused")
            )
            self.assertEqual(self.load.ask(self.load.connect()), 200)
            self.assertEqual({key: self.presented(self.document[key]) for key in shown}, shown)
            good.replace(path)
            self.hang_up(role)
            self.assertEqual(self.reasons(role), [])
            shown = {key: self.presented(self.document[key]) for key in shown}
