"""Every listener of a running deployment, walked: what is open, and what nobody can reach from outside the host."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from iop.wire.dialect import CONTROL, RUNTIME
from tests.integration.quickstart import RunningQuickstart

#: Places where one would look for a way to make principals and tokens, or to read secrets.
PATHS = [
    *("/", "/v1", "/admin", "/bootstrap", "/setup", "/init", "/debug", "/openapi.json", "/docs"),
    *("/v1/bootstrap", "/v1/principals", "/v1/principals/ann", "/v1/tokens", "/v1/users", "/v1/keys", "/v1/keyring"),
    *("/v1/slots/main/secret", "/v1/slots/main", "/v1/admin/principals", "/v1/issuers", "/v1/leases", "/v1/projection"),
]
METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH"]
#: All that is open without a token.
STATUS_PAGES = ["/healthz", "/readyz", "/metrics"]


class ListenerTests(SynchronousTestCase):
    def setUp(self) -> None:
        running = RunningQuickstart(Path(self.mktemp()))
        self.addCleanup(running.kill)
        self.document = running.ready()
        self.context = ssl.create_default_context(cafile=self.document["edge_ca"])

    def listeners(self) -> Iterator[tuple[str, str, str]]:
        """Role, name and address of everything that listens."""
        for record in sorted(Path(self.document["home"], "run").glob("*.json")):
            document = json.loads(record.read_text())
            for name, address in document["addresses"].items():
                yield document["role"], name, address

    def call(self, name: str, address: str, method: str, path: str, token: str = "") -> int:
        """The status of one call."""
        connection: http.client.HTTPConnection
        if name == "status":
            connection = http.client.HTTPConnection(address, timeout=10)
        else:
            connection = http.client.HTTPSConnection(address, timeout=10, context=self.context)
        try:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            connection.request(method, path, body=b"" if method == "GET" else b"{}", headers=headers)
            return connection.getresponse().status
        finally:
            connection.close()

    def test_no_remote_bootstrap(self) -> None:
        """K3, K8, P24: with no token, or with the best there is, no listener makes a principal or shows a secret."""
        web = [
            (name, address) for _, name, address in self.listeners() if name in ("api", "credential_https", "status")
        ]
        self.assertEqual(len(web), 5)
        tokens = ["", *(Path(self.document[key]).read_text() for key in ("token_file", "manage_token_file"))]
        for name, address in web:
            for method in METHODS:
                for path in PATHS if name == "status" else (*PATHS, *STATUS_PAGES):
                    for token in tokens:
                        status = self.call(name, address, method, path, token)
                        # 428: a secret is replaced there by whoever owns the slot, and none is ever shown
                        self.assertIn(status, (400, 401, 403, 404, 405, 411, 413, 428, 501), (name, method, path))

    def test_only_status_pages_are_open(self) -> None:
        """P1: without a token the HTTP listeners answer 401 to everything that exists, but for the status pages."""
        existing = {"api": ["/v1/models", "/v1/models/stand-in"], "credential_https": ["/v1/whoami", "/v1/slots"]}
        asked = 0
        for _, name, address in self.listeners():
            if name == "status":
                self.assertEqual([self.call(name, address, "GET", path) for path in STATUS_PAGES], [200] * 3)
            for path in existing.get(name, []):
                self.assertEqual(self.call(name, address, "GET", path), 401, (name, path))
                asked += 1
        self.assertEqual(asked, 4)

    def test_peer_wires_talk_to_nobody_without_a_certificate(self) -> None:
        """P1: the two mutual TLS listeners end the connection of whoever shows none."""
        mutual = [address for _, name, address in self.listeners() if name in ("edge_wire", "node_wire")]
        self.assertEqual(len(mutual), 2)
        for address in mutual:
            connection = http.client.HTTPSConnection(address, timeout=10, context=self.context)
            with self.assertRaises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
                connection.request("GET", "/")
                connection.getresponse()
            connection.close()

    def test_peer_wires_know_no_word_for_it(self) -> None:
        """K8: no message of either wire is about making principals, tokens, slots or routes."""
        for dialect in (CONTROL, RUNTIME):
            for initiator in (True, False):
                kinds = set(dialect.requests(initiator=initiator)) | set(dialect.notes(initiator=initiator))
                for kind in kinds:
                    for word in ("bootstrap", "token", "create", "slot", "route", "schedule"):
                        self.assertNotIn(word, kind)
