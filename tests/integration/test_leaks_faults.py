"""Canaries in a deployment that logs at debug level and breaks at every hop, with a secret in hand where there is one.

The faults are those of ``faults/sitecustomize.py``. Reads the Edge's memory: needs root, as CI has it.
"""

from __future__ import annotations

import json
import os
import resource
from http.client import HTTPConnection
from pathlib import Path
from time import monotonic, sleep
from urllib.parse import urlencode

from tests.canaries import Searcher
from tests.integration.canary_case import CHAT, CanaryCase, is_whole
from tests.integration.faults.sitecustomize import HOPS
from tests.integration.quickstart import SECONDS, RunningQuickstart

FAULTS = Path(__file__).parent / "faults"
#: Statuses of calls that met a fault; 0 is an answer that broke off.
FAILED = (0, *range(500, 600))


class FaultCase(CanaryCase):
    """A deployment whose roles break on demand."""

    def start(self) -> RunningQuickstart:
        self.tapped = Path(self.mktemp()).absolute()
        path = os.pathsep.join([str(FAULTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        return RunningQuickstart(self.home, PYTHONPATH=path, IOP_TEST_TAP=str(self.tapped))

    def until_ready(self) -> None:
        """Wait until the Edge can serve again: a fault may have cost it a connection."""
        record = json.loads((self.home / "run" / "edge.json").read_text())
        deadline = monotonic() + SECONDS
        while True:
            connection = HTTPConnection(record["addresses"]["status"], timeout=SECONDS)
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            self.received += answer.read()
            connection.close()
            if answer.status == 200:
                return
            self.assertLess(monotonic(), deadline)
            sleep(0.05)

    def manage_call(self, method: str, path: str, body: bytes, *fields: tuple[str, str]) -> int:
        """A call of the credential API, made again while it says that there were too many."""
        while (status := self.call("credential_url", method, path, f"Bearer {self.manage}", body, *fields)) == 429:
            sleep(0.5)
        return status

    def forget_leases(self) -> None:
        """Have the Edge ask for a new lease: those of an older generation do not hold."""
        slot = json.loads(self.read("stored.json"))["slot"]
        body = json.dumps({"slot": slot, "upstream_model": "stand-in", "selector": ""}).encode()
        fields = (("If-None-Match", "*"), ("Content-Type", "application/json"))
        path = f"/v1/routes/extra-{os.urandom(4).hex()}"
        self.assertEqual(self.manage_call("PUT", path, body, *fields), 201)

    def create_slot(self, name: str) -> int:
        """Store one more secret; it counts as refused, because it may be nowhere."""
        secret = f"Refused-{os.urandom(12).hex()}".encode()
        self.refused[f"secret of slot {name}"] = secret
        path = "/v1/slots?" + urlencode({"name": name, "profile": "openai", "target": "stand-in"})
        return self.manage_call("POST", path, secret, ("Content-Type", "application/octet-stream"))

    def logged(self) -> dict[str, list[dict[str, object]]]:
        """Lines of each role's log."""
        return {
            path.stem: [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
            for path in (self.home / "logs").iterdir()
        }


class FaultTests(FaultCase):
    def test_a_fault_at_every_hop_shows_nothing(self) -> None:
        """P6, P21, P24, P25: an exception that holds the secret itself, at each hop: the caller gets an error, and the
        next request an answer. No canary is in any log, file, answer, page, or in the Edge's memory, or crossed its
        connections.
        """
        self.route_everything()
        fault = self.home / "fault"
        for number, hop in enumerate(HOPS):
            if hop.endswith(("slot", "store")):
                fault.write_text(hop)
                self.assertEqual(self.create_slot(f"slot-{number}"), 500, hop)
            else:
                # only the body of an error is redacted
                body = self.chat("stand-in/echo-key-500" if hop == "node: redact" else "stand-in")
                self.forget_leases()
                fault.write_text(hop)
                status = self.call("edge_url", "POST", CHAT, f"Bearer {self.use}", body)
                # an answer that has begun ends in the middle
                self.assertTrue(status in FAILED or not is_whole(self.last), hop)
            fault.unlink()
            self.until_ready()
            status = self.call("edge_url", "POST", CHAT, f"Bearer {self.use}", self.chat("stand-in"))
            self.assertEqual(status, 200, hop)
        self.pages()
        # each fault is told, by its type and place alone
        injected = [line for lines in self.logged().values() for line in lines if "Injected" in str(line)]
        self.assertGreaterEqual(len(injected), len(HOPS))

        foreign = Searcher(self.foreign_to_the_edge())
        self.assertEqual(foreign.in_memory(self.document["pids"]["edge"]), [])
        crossed = self.tapped.read_bytes()
        self.assertEqual(foreign.in_bytes("the Edge's connections", crossed), [])
        # that is what crossed them: callers' tokens, and requests on their way to the Node
        for seen in (self.use.encode(), b"hello", b"chatcmpl"):
            self.assertIn(seen, crossed)
        code, output, errors = self.running.stop()
        self.assertEqual(code, 0)
        self.search_home()
        told = json.dumps(self.document) + output + errors
        canaries = Searcher(self.canaries())
        self.assertEqual(canaries.in_bytes("what quickstart printed", told.encode()), [])
        self.assertEqual(canaries.in_bytes("answers", self.received), [])


class CrashTests(FaultCase):
    """Roles that are started with core files allowed, as a system may be configured."""

    def start(self) -> RunningQuickstart:
        soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_CORE, (soft, hard))
        return super().start()

    def check(self, hop: str) -> None:
        """The process at this hop dies of SIGSEGV with the secret in hand, and the quickstart ends with it."""
        self.forget_leases()
        (self.home / "fault").write_text(f"crash {hop}")
        status = self.call("edge_url", "POST", CHAT, f"Bearer {self.use}", self.chat("stand-in"))
        self.assertIn(status, FAILED)
        code, output, errors = self.running.end()
        self.assertEqual(code, 1)
        self.assertIn("signal 11", output + errors)
        self.search_home()
        self.assertEqual([path.name for path in self.home.rglob("core*")], [])
        canaries = Searcher(self.canaries())
        self.assertEqual(canaries.in_bytes("answers", self.received), [])
        self.assertEqual(canaries.in_bytes("what quickstart printed", (output + errors).encode()), [])

    def test_control_plane(self) -> None:
        """P21, P25: a Control Plane that crashes as it seals a lease leaves no core file and no canary."""
        self.check("control plane: seal lease")

    def test_node(self) -> None:
        """P25: a Node that crashes with the provider's key in hand leaves no core file and no canary."""
        self.check("node: header")
