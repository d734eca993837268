"""Texts of configuration that more than one test starts a role from, each on loopback and in the folder it lies in."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from iop.net.tls import TlsFiles
from iop.testing.pki import TRUST_DOMAIN

DEPLOYMENT: Final = "deployment-1"

#: What every role has; a role that a test makes up needs no more.
ROLE: Final = f"""
[deployment]
id = "{DEPLOYMENT}"
trust_domain = "{TRUST_DOMAIN}"
[status]
listen = "tcp:port=0:interface=127.0.0.1"
[run]
directory = "run"
"""

#: Files of a Control Plane that need not exist to be named.
_NAMED: Final = TlsFiles(certificate=Path("cp.pem"), key=Path("cp.key"), trust=Path("ca.pem"))


def control_plane_toml(files: TlsFiles = _NAMED) -> str:
    """The Control Plane ``cp1``, with ``files`` for both of its listeners."""
    return f"""{ROLE}
[control_plane]
name = "cp1"
[store]
path = "store.sqlite"
[keys]
keyring = "keyring.json"
issuer = "issuer.json"
pinned_issuers = "issuers.json"
[credential_plane]
enabled = true
[edge_wire]
listen = "tcp:port=0:interface=127.0.0.1"
certificate = "{files.certificate}"
key = "{files.key}"
trust = "{files.trust}"
[credential_https]
listen = "tcp:port=0:interface=127.0.0.1"
certificate = "{files.certificate}"
key = "{files.key}"
"""


def node_toml(node: str, edge: str, files: TlsFiles, edge_port: int, provider_port: int) -> str:
    """A Node of the names ``node`` and ``edge``, whose target ``lab`` is a provider on this machine."""
    return f"""{ROLE}
[node]
name = "{node}"
[tls]
certificate = "{files.certificate}"
key = "{files.key}"
trust = "{files.trust}"
[edge]
endpoint = "tcp:host=127.0.0.1:port={edge_port}"
name = "{edge}"
server_name = "localhost"
[issuers]
pinned = "issuers.json"
[targets.lab]
base_url = "http://127.0.0.1:{provider_port}/v1"
profiles = ["openai"]
"""
