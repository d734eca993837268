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
NAMES: Final = {Role.CONTROL_PLANE: "cp-1", Role.EDGE: "edge-1", Role.NODE: "node-1"}
TITLES: Final = {Role.CONTROL_PLANE: "Control Plane", Role.EDGE: "Edge", Role.NODE: "Node"}
#: Everything that listens in a quickstart.
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

    def config(self, role: Role) -> Path:
        """A role's configuration file."""
        return self.root / f"{role.value}.toml"

    def log(self, name: str) -> Path:
        """The log of a role or of the provider."""
        return self.logs / f"{name}.log"

    def certificate(self, role: Role) -> PemPaths:
        """A role's certificate and key."""
        return leaf_paths(self.pki, role, NAMES[role])

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

    def settings(self) -> Settings:
        """What was decided in an earlier run, or new decisions, with ports that are free. Not yet written."""
        kept = self._record(self._settings)
        ports = kept.get("ports", {})
        return Settings(
            deployment=kept.get("deployment") or new_id(),
            ports={name: self._reserve(ports.get(name, 0)) for name in LISTENERS},
            upstream=Upstream(**kept["upstream"]) if kept.get("upstream") else None,
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

    def make_certificates(self) -> None:
        """Authority and one certificate per role, for loopback; one that ends soon is replaced."""
        now = datetime.now(UTC)
        now_ms = int(now.timestamp() * 1000)
        authority = Authority.load(self.pki) if self.ca.exists() else Authority.create(self.pki, TRUST_DOMAIN, now_ms)
        for role, name in NAMES.items():
            paths = self.certificate(role)
            if paths.certificate.exists():
                present = read_certificates(paths.certificate)[0]
                if present.not_valid_after_utc > now + _RENEW:
                    continue
            dialled = role is not Role.NODE
            leaf = authority.issue(
                role,
                name,
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
        record = self._record(self._stored)
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

    def _record(self, path: Path) -> dict[str, Any]:
        if not path.exists():
            return {}
        try:
            record = json.loads(read_public(path, _RECORD_LIMIT))
        except ValueError as error:
            raise FileRefused(f"{path} is damaged", hint="name another folder: --home FOLDER") from error
        return record if isinstance(record, dict) else {}


def _fingerprint(salt: str, secret: Secret) -> str:
    return hmac.new(bytes.fromhex(salt), secret.reveal(), sha256).hexdigest()
