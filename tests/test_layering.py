"""The arrows of docs/architecture.md: who may import whom. Every import statement counts, wherever it stands."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).resolve().parent.parent / "src"

VALUES = {"errors", "units", "secret", "records", "files", "certificates", "interfaces"}
UP_TO_CORE = VALUES | {"wire", "core"}
MIDDLE = {"crypto", "store", "net"}
BENEATH_ROLES = UP_TO_CORE | MIDDLE | {"process"}
ROLES = {"control_plane", "edge", "node"}

#: What each part of the project may import of the project, besides itself.
MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(VALUES, VALUES),
    "wire": VALUES,
    "core": VALUES | {"wire"},
    **dict.fromkeys(MIDDLE, UP_TO_CORE),
    "process": UP_TO_CORE | MIDDLE,
    **dict.fromkeys(ROLES, BENEATH_ROLES),
    "testing": BENEATH_ROLES,
    "cli": BENEATH_ROLES | ROLES | {"testing"},
    "__main__": {"cli"},
}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module, and where."""

    module: Path
    line: int
    name: str
    #: Whether only type checkers see it.
    for_types: bool
    #: Whether it runs when the module is imported.
    at_import: bool

    def __str__(self) -> str:
        return f"{self.module.relative_to(ROOT)}:{self.line} imports {self.name}"

    @property
    def importer(self) -> str:
        """The part of the project it stands in."""
        return self.module.relative_to(ROOT / "iop").parts[0].removesuffix(".py")


def imports() -> Iterator[Import]:
    """Every import of every module of the project."""
    for module in sorted((ROOT / "iop").rglob("*.py")):
        yield from _walk(module, ast.parse(module.read_text()), for_types=False, at_import=True)


def _walk(module: Path, node: ast.AST, *, for_types: bool, at_import: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(module, child.lineno, alias.name, for_types, at_import)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{module}:{child.lineno}: imports are absolute"
            for alias in child.names:
                yield Import(module, child.lineno, f"{child.module}.{alias.name}", for_types, at_import)
        elif isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            yield from _walk(module, child, for_types=True, at_import=False)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _walk(module, child, for_types=for_types, at_import=at_import and not inside)


class LayeringTests(SynchronousTestCase):
    def test_every_part_has_its_place(self) -> None:
        """A new folder or module at the top needs a line in the table, and an arrow in the document."""
        parts = {
            path.stem for path in (ROOT / "iop").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
        }
        self.assertEqual(parts - {"__init__"}, set(MAY_IMPORT))

    def test_arrows(self) -> None:
        """Nothing imports what stands above it or beside it."""
        wrong = []
        for each in imports():
            package, _, rest = each.name.partition(".")
            imported = rest.partition(".")[0]
            if package == "iop" and imported != each.importer and imported not in MAY_IMPORT[each.importer]:
                wrong.append(str(each))
        self.assertEqual(wrong, [])

    def test_wire_and_core_do_no_io(self) -> None:
        """Bytes need nothing of Twisted. Decisions may answer with a Deferred and name a type; they do nothing else."""
        harmless = {"wire": (), "core": ("twisted.internet.defer.", "twisted.internet.interfaces.")}
        wrong = [
            str(each)
            for each in imports()
            if each.importer in harmless
            and each.name.startswith("twisted")
            and not each.for_types
            and not each.name.startswith(harmless[each.importer])
        ]
        self.assertEqual(wrong, [])

    def test_no_reactor_at_import(self) -> None:
        """The reactor is passed in; only what starts a process looks for the global one, when it does."""
        wrong = [
            str(each)
            for each in imports()
            if each.name == "twisted.internet.reactor" and (each.at_import or each.importer != "process")
        ]
        self.assertEqual(wrong, [])

    def test_no_grpc(self) -> None:
        """C48: the product speaks no gRPC."""
        self.assertEqual([str(each) for each in imports() if each.name.split(".")[0] in {"grpc", "grpc_tools"}], [])

    def test_the_control_plane_dials_nobody(self) -> None:
        """C1, C44: Edges dial it, and a Node is nothing that it could reach: whoever dials is an Edge or a Node."""
        dialling = ("iop.net.dial.", "twisted.internet.endpoints.", "twisted.internet.protocol.ClientFactory")
        dials = {
            each.importer
            for each in imports()
            if each.name.startswith(dialling) and not each.name.endswith((".serverFromString", ".UNIXServerEndpoint"))
        }
        self.assertEqual(dials & ROLES, {"edge", "node"})

    def test_fakes_are_for_tests_and_the_quickstart(self) -> None:
        """No role can be given a fake by mistake: of what ships, only the quickstart's stand-in uses one."""
        users = {each.name for each in imports() if each.name.startswith("iop.testing") and each.importer != "testing"}
        self.assertEqual({name.rpartition(".")[0] for name in users}, {"iop.testing.provider"})
