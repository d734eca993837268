"""A Node's two modes: runs with leases and none without, or runs without and none with (E17, C25)."""

from __future__ import annotations

import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from iop.core.profiles import PROFILES
from iop.errors import BadConfig
from iop.node.config import NodeConfig, load
from iop.node.leases import Leaseless
from iop.node.metrics import NodeMetrics
from iop.node.runs import Runs
from iop.process.metrics import new_registry
from iop.wire import runtime_pb2
from tests.node.test_config import GOOD
from tests.node.test_runs import NodeCase, as_headers

_ISSUERS = '[issuers]\npinned = "issuers.json"\n'
_LEGACY = "[credential_plane]\nenabled = false\n"
#: A Node in legacy mode.
LEGACY = re.sub("profiles = .*", 'profiles = ["none"]', GOOD.replace(_ISSUERS, _LEGACY))


class ManagedTests(NodeCase):
    def test_a_run_without_a_lease(self) -> None:
        """E17, C25: a managed Node takes no run without a lease, whatever the provider's profile is."""
        for number, profile in enumerate(PROFILES, 1):
            request = self.request(number, profile=profile)
            request.ClearField("lease")
            self.assert_refused(request, "lease_refused")


class LegacyTests(NodeCase):
    def restart(self) -> None:
        super().restart()
        self.runs = Runs(self.peer, Leaseless("node-1"), self.providers, self.clock, NodeMetrics(new_registry()))

    def leaseless(self, run: int = 1, profile: str = "none") -> runtime_pb2.RunRequest:
        request = self.request(run, profile=profile)
        request.ClearField("lease")
        return request

    def test_a_run_without_a_lease(self) -> None:
        """E17: it is taken, and no credential header is sent."""
        call = self.begin(self.leaseless())
        self.assertEqual(sorted(call.headers), [("accept-encoding", "identity"), ("content-type", "application/json")])

    def test_a_run_with_a_lease(self) -> None:
        """C25: a lease opens nothing here, were it the best; nor does an empty one."""
        self.assert_refused(self.request(1, profile="none", secret=b""), "lease_refused")
        request = self.leaseless(2)
        request.lease.SetInParent()
        self.assert_refused(request, "lease_refused")
        self.assertEqual(self.secrets, [])

    def test_a_provider_with_a_credential(self) -> None:
        """E17, C25: of every other profile nothing is called, with a lease or without."""
        for number, profile in enumerate(PROFILES.keys() - {"none"}, 1):
            self.assert_refused(self.leaseless(2 * number, profile), "lease_refused")
            self.assert_refused(self.request(2 * number + 1, profile=profile), "lease_refused")

    def test_credential_headers(self) -> None:
        """R8: an Edge cannot bring a credential in the headers either."""
        request = self.leaseless()
        request.headers.extend(as_headers({"authorization": "Bearer x"}))
        self.assert_refused(request, "not_allowed")

    def test_another_binding(self) -> None:
        """P17: the run says which provider of which Node it is for, and calls only what the profile lists."""
        for number, (name, other) in enumerate({"target": "x", "node": "node-2", "profile": "openai"}.items(), 1):
            request = self.leaseless(number)
            setattr(request.binding, name, other)
            self.assert_refused(request, "lease_refused")
        request = self.leaseless(9)
        request.path = "/files"
        self.assert_refused(request, "lease_refused")
        request = self.leaseless(10)
        request.binding.Clear()
        self.assert_refused(request, "lease_refused")


class ConfigTests(SynchronousTestCase):
    def read(self, text: str) -> NodeConfig:
        path = Path(self.mktemp())
        path.write_text(text)
        return load(path)

    def refused(self, text: str) -> str:
        refusal: BadConfig = self.assertRaises(BadConfig, self.read, text)
        return refusal.message

    def test_modes(self) -> None:
        """E17: managed unless the file says otherwise; without leases no issuer is needed."""
        self.assertTrue(self.read(GOOD).credential_plane.enabled)
        self.assertTrue(self.read(GOOD + "[credential_plane]\nenabled = true\n").credential_plane.enabled)
        legacy = self.read(LEGACY)
        self.assertEqual((legacy.credential_plane.enabled, legacy.issuers), (False, None))

    def test_neither_mode(self) -> None:
        """C25: what is of the other mode is refused, with what to do."""
        self.assertIn("[issuers] pinned: is missing; name the file", self.refused(GOOD.replace(_ISSUERS, "")))
        self.assertIn("remove it, or set [credential_plane] enabled = true", self.refused(LEGACY + _ISSUERS))
        self.assertIn("[credential_plane] enabled: is missing", self.refused(GOOD + "[credential_plane]\n"))

    def test_profiles(self) -> None:
        """E17, N6: a legacy Node has no target for which it would refuse every run."""
        for profiles in ('["openai"]', '["none", "openai"]', '["none", "none"]'):
            message = self.refused(LEGACY.replace('["none"]', profiles, 1))
            self.assertIn('[targets.openai] profiles: without the credential plane it must be ["none"]', message)
