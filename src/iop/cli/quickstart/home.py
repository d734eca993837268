"""The folder a quickstart lives in. Every step of making it can be cut off anywhere and done again (P46)."""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from iop.certificates import read_certificates
from iop.crypto.issuer import Issuer, write_public_set
from iop.crypto.keyring import Keyring
from iop.crypto.pki import Authority, PemPaths, authority_paths, leaf_paths
from iop.errors import AlreadyRunning, FileRefused
from iop.files import read_public, straightened, write_atomic, write_private
from iop.secret import Secret
from iop.store.schema import migrate
from iop.units import Role, fits_socket, new_id

TRUST_DOMAIN: Final = "quickstart.iop"
TITLES: Final = {Role.CONTROL_PLANE: "Control Plane", Role.EDGE: "Edge", Role.NODE: "Node"}
#: Nodes of one quickstart at most.
NODES_LIMIT: Final = 8
#: Everything that listens in a quickstart with one Node.
LISTENERS: Final = (
    "edge_wire",
    "credential_https",
    "control_plane_status",
    "api",
    "node_wire",
    "edge_status",
    "node_status",
    "provider",
)
_RECORD_LIMIT = 64 * 1024
_RENEW = timedelta(days=2)


_PREFIXES: Final = {Role.CONTROL_PLANE: "cp", Role.EDGE: "edge", Role.NODE: "node"}


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a role."""

    role: Role
    number: int = 1

    @property
    def name(self) -> str:
        """What its certificate and its configuration call it."""
        return f"{_PREFIXES[self.role]}-{self.number}"

    @property
    def key(self) -> str:
        """What its files and its process are called."""
        return self.role.value if self.number == 1 else self.name

    @property
    def status_listener(self) -> str:
        """What its status listener is called."""
        return f"{self.key.replace('-', '_')}_status"


def members(nodes: int) -> list[Member]:
    """Every process of a quickstart with so many Nodes, in the order in which they start."""
    first = [Member(Role.CONTROL_PLANE), Member(Role.EDGE)]
    return [*first, *(Member(Role.NODE, number) for number in range(1, nodes + 1))]


@dataclass(frozen=True, slots=True)
class Upstream:
    """A real provider to use instead of the bundled one."""

    url: str
    profile: str
    model: str
    #: What Nodes call it. It follows from the URL, so that a secret stored for one place is never sent to another.
    target: str


@dataclass(frozen=True, slots=True)
class Stored:
    """Which secret is in which slot; the fingerprint is keyed with a salt of its own, in a private file."""

    slot: str
    target: str
    profile: str
    salt: str = field(repr=False)
    fingerprint: str = field(repr=False)

    def is_for(self, target: str, profile: str) -> bool:
        """Whether what is in this slot may go to ``target`` as ``profile`` says."""
        return (self.target, self.profile) == (target, profile)

    def is_of(self, secret: Secret) -> bool:
        """Whether this slot was made from ``secret``."""
        return hmac.compare_digest(self.fingerprint, _fingerprint(self.salt, secret))


@dataclass(frozen=True, slots=True)
class Settings:
    """What was decided once and is kept."""

    deployment: str
    ports: dict[str, int]
    upstream: Upstream | None
    nodes: int = 1


class Home:
    """Paths, and the steps that fill them."""

    def __init__(self, root: Path) -> None:
        self.root = straightened(root)
        self.pki = self.root / "pki"
        self.ca = authority_paths(self.pki).certificate
        self.keyring = self.root / "keys" / "keyring.json"
        self.issuer = self.root / "keys" / "issuer.json"
        self.pinned_issuers = self.root / "keys" / "pinned-issuers.json"
        self.database = self.root / "store" / "iop.db"
        self.edge_state = self.root / "edge-state"
        self.run = self.root / "run"
        self.logs = self.root / "logs"
        self.provider_secret = self.root / "provider.key"
        self.use_token = self.root / "use.token"
        self.manage_token = self.root / "manage.token"
        self._reserved: list[socket.socket] = []
        self._settings = self.root / "quickstart.json"
        self._stored = self.root / "stored.json"

    @property
    def operator_socket(self) -> Path | None:
        """The Control Plane's operator socket; None if this home's path is too long for one."""
        path = self.run / "operator.sock"
        return path if fits_socket(path) else None

    def config(self, member: Member) -> Path:
        """A process's configuration file."""
        return self.root / f"{member.key}.toml"

    def record(self, member: Member) -> Path:
        """Where a process writes its addresses; only one of a role can do so in one folder."""
        folder = self.run if member.number == 1 else self.run / member.key
        return folder / f"{member.role.value}.json"

    def log(self, name: str) -> Path:
        """The log of a process, by its key, or of the provider."""
        return self.logs / f"{name}.log"

    def certificate(self, member: Member) -> PemPaths:
        """A process's certificate and key."""
        return leaf_paths(self.pki, member.role, member.name)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder if need be, and hold it alone.

        :raises AlreadyRunning: if another quickstart runs here.
        :raises FileRefused: if the folder cannot be made, or is somebody else's.
        """
        self._check_ours()
        try:
            for folder in (self.root, self.keyring.parent, self.database.parent, self.edge_state, self.run, self.logs):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FileRefused(
                f"{self.root} cannot be made: {error.strerror}", hint="name another folder: --home FOLDER"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise AlreadyRunning(
                f"another quickstart runs in {self.root}", hint="stop it, or name another folder: --home FOLDER"
            ) from None
        finally:
            os.close(descriptor)
            while self._reserved:
                self._reserved.pop().close()

    def _check_ours(self) -> None:
        """Refuse a folder with other things in it than a quickstart makes first: its files would lie among them."""
        first = {self.keyring.parent, self.database.parent, self.edge_state, self.run, self.logs, self.root / "lock"}
        if self.root.is_dir() and not self._settings.exists() and set(self.root.iterdir()) - first:
            raise FileRefused(
                f"{self.root} holds other things than a quickstart's", hint="name a folder of its own: --home FOLDER"
            )

    def settings(self, nodes: int | None = None) -> Settings:
        """What was decided in an earlier run, or new decisions, with ports that are free. Not yet written.

        :param nodes: how many Nodes there are from now on; as many as before without it.
        """
        kept = self._read(self._settings)
        ports = kept.get("ports", {})
        nodes = nodes or kept.get("nodes", 1)
        listeners = dict.fromkeys((*LISTENERS, *(member.status_listener for member in members(nodes))))
        return Settings(
            deployment=kept.get("deployment") or new_id(),
            ports={name: self._reserve(ports.get(name, 0)) for name in listeners},
            upstream=Upstream(**kept["upstream"]) if kept.get("upstream") else None,
            nodes=nodes,
        )

    def keep(self, settings: Settings) -> None:
        """Write what was decided."""
        write_atomic(self._settings, json.dumps(asdict(settings), indent=2).encode() + b"\n", 0o644)

    def check_whole(self) -> None:
        """Refuse a home that was made and lost a file since: what it was made for cannot be made again.

        :raises FileRefused: naming the file.
        """
        if not self.use_token.exists() and not self._stored.exists():
            return
        authority = authority_paths(self.pki)
        kept = (self.use_token, self.manage_token, self.keyring, self.issuer, self.database)
        for path in (*kept, authority.certificate, authority.key):
            if not path.exists():
                raise FileRefused(
                    f"{path} is gone, and this quickstart stands on it",
                    hint=f"remove {self.root}, or name another folder: --home FOLDER",
                )

    def make_certificates(self, nodes: int) -> None:
        """Authority and one certificate per process, for loopback; one that ends soon is replaced."""
        now = datetime.now(UTC)
        now_ms = int(now.timestamp() * 1000)
        authority = Authority.load(self.pki) if self.ca.exists() else Authority.create(self.pki, TRUST_DOMAIN, now_ms)
        for member in members(nodes):
            paths = self.certificate(member)
            if paths.certificate.exists():
                present = read_certificates(paths.certificate)[0]
                if present.not_valid_after_utc > now + _RENEW:
                    continue
            dialled = member.role is not Role.NODE
            leaf = authority.issue(
                member.role,
                member.name,
                dns=["localhost"] if dialled else [],
                addresses=[ip_address("127.0.0.1")] if dialled else [],
                now_ms=now_ms,
            )
            leaf.write(paths.certificate, paths.key)

    def make_keys(self) -> None:
        """Keyring, lease issuer key, and the public set that the Node pins."""
        if not self.keyring.exists():
            Keyring.create(self.keyring)
        issuer = Issuer.load(self.issuer) if self.issuer.exists() else Issuer.create(self.issuer)
        write_public_set(self.pinned_issuers, [issuer.public_key])
        if not self.provider_secret.exists():
            write_private(self.provider_secret, f"stand-in-{secrets.token_urlsafe(24)}".encode())

    def make_store(self, deployment: str) -> None:
        """The database, with its current schema."""
        migrate(self.database, deployment)

    def stored(self) -> Stored | None:
        """Which secret was stored last, if any."""
        record = self._read(self._stored)
        return Stored(**record) if record else None

    def keep_stored(self, slot: str, target: str, profile: str, secret: Secret) -> Stored:
        """Remember that ``secret`` is in ``slot``."""
        salt = secrets.token_hex(32)
        stored = Stored(slot, target, profile, salt, _fingerprint(salt, secret))
        write_private(self._stored, json.dumps(asdict(stored)).encode())
        return stored

    def _reserve(self, port: int) -> int:
        """This port of loopback if it is free, else another. While the home is held, nobody else is given it.

        A socket that is bound but does not listen keeps a port from being chosen for others, and, with SO_REUSEADDR on
        both sides, lets the role listen there.
        """
        reserved = socket.socket()
        self._reserved.append(reserved)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            reserved.bind(("127.0.0.1", port))
        except OSError:
            reserved.bind(("127.0.0.1", 0))
        return int(reserved.getsockname()[1])

    def _read(self, path: Path) -> dict[str, Any]:
        if not path.exists():
            return {}
        try:
            record = json.loads(read_public(path, _RECORD_LIMIT))
        except ValueError as error:
            raise FileRefused(f"{path} is damaged", hint="name another folder: --home FOLDER") from error
        return record if isinstance(record, dict) else {}


def _fingerprint(salt: str, secret: Secret) -> str:
    return hmac.new(bytes.fromhex(salt), secret.reveal(), sha256).hexdigest()
