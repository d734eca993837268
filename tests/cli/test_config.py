"""``iop config check``."""

from __future__ import annotations

import json
import re
from pathlib import Path

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from iop.cli.config import check_file, config
from iop.cli.quickstart.configs import write_configs
from iop.cli.quickstart.home import LISTENERS, Home, Member, Settings, Upstream
from iop.errors import BadConfig
from iop.units import Role


class CheckTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.home = Home(Path(self.mktemp()))
        self.home.root.mkdir()
        self.write(None)

    def write(self, upstream: Upstream | None) -> None:
        """Write the configurations of a quickstart."""
        ports = dict(zip(LISTENERS, range(40001, 40100), strict=False))
        write_configs(self.home, Settings("d-1", ports, upstream))

    def test_recognises_each_role(self) -> None:
        """What quickstart writes is good, with a provider of one's own too; nothing has to exist for that."""
        for upstream in (
            None,
            Upstream("https://api.example.org/v1", "openai", 'a "model" \\ é', "api.example.org-443"),
        ):
            self.write(upstream)
            for role in (Role.CONTROL_PLANE, Role.EDGE, Role.NODE):
                self.assertIs(check_file(self.home.config(Member(role))), role)

    def test_examples_of_the_documentation(self) -> None:
        """Each is a whole file that a role starts with."""
        text = (Path(__file__).parent.parent.parent / "docs" / "configuration.md").read_text()
        path = self.home.root / "example.toml"
        roles = []
        for example in re.findall(r"^```toml\n(.*?)^```$", text, re.M | re.S):
            path.write_text(example)
            roles.append(check_file(path))
        self.assertEqual(roles, [Role.CONTROL_PLANE, Role.EDGE, Role.NODE])

    def test_says_so(self) -> None:
        done = CliRunner().invoke(config, ["check", str(self.home.config(Member(Role.EDGE))), "--json"])
        self.assertEqual(json.loads(done.output)["role"], "edge")

    def test_quickstart_files_refuse_to_listen_for_others(self) -> None:
        """A configuration made for one machine does not become a deployment by changing an address."""
        path = self.home.config(Member(Role.EDGE))
        path.write_text(path.read_text().replace("interface=127.0.0.1", "interface=0.0.0.0"))
        with self.assertRaises(BadConfig) as caught:
            check_file(path)
        self.assertIn("[api] listen: must listen on loopback", caught.exception.message)
        self.assertIn("[node_wire] listen: must listen on loopback", caught.exception.message)

    def test_mistake_is_placed(self) -> None:
        path = self.home.config(Member(Role.NODE))
        path.write_text(path.read_text().replace("base_url", "base_uri"))
        with self.assertRaises(BadConfig) as caught:
            check_file(path)
        self.assertIn("[targets.stand-in] base_uri: is not a known key", caught.exception.message)
        self.assertIn("[targets.stand-in] base_url: is missing", caught.exception.message)

    def test_no_role(self) -> None:
        path = self.home.root / "other.toml"
        path.write_text("[tool]\nx = 1\n")
        with self.assertRaises(BadConfig) as caught:
            check_file(path)
        self.assertIn("configures no role", caught.exception.message)
