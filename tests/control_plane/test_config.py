"""``control-plane.toml`` and what the environment says in its place."""

from __future__ import annotations

import os
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from iop.control_plane.config import load
from iop.errors import BadConfig
from tests.control_plane.world import CONFIG


class ConfigTests(SynchronousTestCase):
    def write(self, text: str) -> Path:
        path = Path(self.mktemp())
        path.write_text(text)
        return path

    def test_environment_overrides_the_edge_wire(self) -> None:
        """K6: the listener that Edges connect to can be given by whoever starts the process."""
        path = self.write(CONFIG)
        self.patch_environment("tcp:port=7443:interface=127.0.0.1")
        self.assertEqual(load(path).edge_wire.listen, "tcp:port=7443:interface=127.0.0.1")

    def test_environment_is_judged_like_the_file(self) -> None:
        """A quickstart stays on loopback, and nonsense is refused under the key's name."""
        for text, value in ((CONFIG, "nonsense"), ("quickstart = true\n" + CONFIG, "tcp:port=7443:interface=0.0.0.0")):
            path = self.write(text)
            self.patch_environment(value)
            error = self.assertRaises(BadConfig, load, path)
            self.assertIn("[edge_wire] listen", error.message)

    def test_managed_mode_needs_its_boundary(self) -> None:
        """C10: without the mTLS listener, or with the credential plane off, it refuses and says what is missing."""
        start, end = CONFIG.index("[edge_wire]"), CONFIG.index("[credential_https]")
        error = self.assertRaises(BadConfig, load, self.write(CONFIG[:start] + CONFIG[end:]))
        self.assertIn("[edge_wire]: is missing", error.message)
        off = CONFIG.replace("enabled = true", "enabled = false")
        self.assertIn("enabled must be true", self.assertRaises(BadConfig, load, self.write(off)).message)

    def patch_environment(self, value: str) -> None:
        self.patch(os, "environ", os.environ | {"IOP_EDGE_WIRE_LISTEN": value})
