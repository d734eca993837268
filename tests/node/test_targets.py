"""N6: a Node serves only what stands in its own configuration."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from iop.core.profiles import PROFILES
from iop.net.tls import ReloadableClient, web_client
from iop.node.targets import Target, served
from iop.testing.upstream import FakeUpstream
from iop.wire import runtime_pb2


class RenewTests(SynchronousTestCase):
    def test_verification(self) -> None:
        """P17: further connections are verified by what was read last."""
        old, new = web_client("localhost", None), web_client("localhost", None)
        upstream, tls = FakeUpstream(), ReloadableClient(old)
        Target("lab", {}, upstream, tls).renew(new)
        self.assertIs(tls.current, new)
        self.assertEqual(upstream.renewed, 1)


class ServedTests(SynchronousTestCase):
    def test_sorting(self) -> None:
        """N6: each refusal has its code; what is served uses the target's own version of the profile."""
        placed = PROFILES["openai-compatible"].placed("x-key", "")
        targets = {"lab": Target("lab", {"openai-compatible": placed}, FakeUpstream())}
        providers, refused = served(
            [
                runtime_pb2.NodeProvider(provider_id="good", target="lab", profile="openai-compatible"),
                runtime_pb2.NodeProvider(provider_id="elsewhere", target="lab2", profile="openai-compatible"),
                runtime_pb2.NodeProvider(provider_id="new", target="lab", profile="gemini"),
                runtime_pb2.NodeProvider(provider_id="other", target="lab", profile="openai"),
                runtime_pb2.NodeProvider(provider_id="nothing"),
            ],
            targets,
        )
        self.assertEqual(list(providers), ["good"])
        self.assertIs(providers["good"].profile, placed)
        self.assertEqual(
            refused,
            {
                "elsewhere": "unknown_target",
                "new": "unknown_profile",
                "other": "profile_mismatch",
                "nothing": "unknown_target",
            },
        )
