"""What is imported is declared, what is declared is used, and each has its line in docs/dependencies.md."""

from __future__ import annotations

import re
import sys
from configparser import ConfigParser
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.test_layering import imports

ROOT = Path(__file__).resolve().parent.parent
#: Distributions whose modules have another name, by the module.
DISTRIBUTIONS = {
    "OpenSSL": "pyopenssl",
    "google": "protobuf",
    "nacl": "pynacl",
    "prometheus_client": "prometheus-client",
    "service_identity": "service-identity",
    "zope": "zope.interface",
}


def names(requirements: str) -> set[str]:
    """The distributions of a list of requirements, one a line."""
    found = (re.match(r"[A-Za-z0-9._-]+", line) for line in requirements.split("\n"))
    return {match[0].lower() for match in found if match}


class DependencyTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.declared = ConfigParser(interpolation=None)
        self.declared.read(ROOT / "setup.cfg")
        self.document = (ROOT / "docs" / "dependencies.md").read_text()

    def test_imports_are_the_declared_ones(self) -> None:
        """Nothing is used because something else happens to bring it, and nothing is installed in vain."""
        modules = {each.name.partition(".")[0] for each in imports()} - sys.stdlib_module_names - {"iop"}
        imported = {DISTRIBUTIONS.get(module, module) for module in modules}
        self.assertEqual(imported, names(self.declared["options"]["install_requires"]))

    def test_each_has_its_line(self) -> None:
        table = {row[1].lower() for row in re.finditer(r"^\| ([A-Za-z0-9.-]+)(?:\[\w+\])? \|", self.document, re.M)}
        self.assertEqual(table - {"package", "---"}, names(self.declared["options"]["install_requires"]))

    def test_each_extra_is_explained(self) -> None:
        for extra, requirements in self.declared["options.extras_require"].items():
            for name in names(requirements) - {"types-grpcio", "types-protobuf", "types-psutil"}:
                self.assertIn(f"`{name}`", self.document, extra)

    def test_ranges_have_a_lower_end(self) -> None:
        """Each says the oldest version that is good enough."""
        required = self.declared["options"]["install_requires"].strip().split("\n")
        self.assertEqual([each for each in required if ">=" not in each], [])
