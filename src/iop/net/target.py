"""Where a Node's target is: one base URL, read strictly (P17)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from iop.errors import BadConfig

_SEGMENT: Final = r"/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._~!$&'()*+,;=:@-]+"
_PATH: Final = re.compile(f"(?:{_SEGMENT})+")
_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9.-]+))(?::(?P<port>[0-9]{1,5}))?"
    rf"(?P<path>(?:{_SEGMENT})*)/?"
)
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
#: The last label begins with a letter: resolvers take ``127.1``, ``2130706433`` and ``0x7f.1`` for addresses.
_DNS_NAME: Final = re.compile(rf"(?=.{{1,253}}\Z)(?:{_LABEL}\.)*(?=[a-z]){_LABEL}")
_PORTS: Final = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Target:
    """One base URL in its parts.

    :ivar host: a DNS name in lower case, or an IP address in canonical form without brackets.
    :ivar base_path: what every path is appended to: empty, or beginning with a slash and not ending with one.
    """

    scheme: str
    host: str
    port: int
    base_path: str

    @property
    def server_name(self) -> str:
        """What the server's certificate must be for."""
        return self.host

    @property
    def authority(self) -> str:
        """The value of the Host field."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse_target(base_url: str) -> Target:
    """Read a base URL: ``https`` to anywhere, ``http`` to this machine only.

    :raises BadConfig: for anything but scheme, host, port and a plain path: userinfo, query, fragment, encoded
        characters, dot segments, empty segments, white space, hosts that readers and resolvers could take differently.
    """
    found = _URL.fullmatch(base_url)
    if found is None:
        raise BadConfig(
            "the base URL is not a plain http or https URL", hint="write https://HOST[:PORT][/PATH], nothing else"
        )
    scheme = found["scheme"]
    port = _PORTS[scheme] if found["port"] is None else int(found["port"])
    if not 1 <= port <= 65535:
        raise BadConfig(f"the base URL's port {port} does not exist", hint="write a port from 1 to 65535")
    host = _address(found["v6"]) if found["name"] is None else _name(found["name"].lower())
    if scheme == "http" and not is_loopback(host) and host != "localhost":
        raise BadConfig("the base URL is not encrypted and leaves this machine", hint="use https")
    return Target(scheme, host, port, found["path"])


def is_path(path: str) -> bool:
    """Whether ``path`` can be appended to a base URL and mean only itself: no dot segment, query or encoding."""
    return _PATH.fullmatch(path) is not None


def is_loopback(host: str) -> bool:
    """Whether ``host`` is the address of a loopback interface; an IPv4 address dressed as IPv6 is not."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_loopback and not _is_mapped(address)


def _is_mapped(address: IPv4Address | IPv6Address) -> bool:
    return isinstance(address, IPv6Address) and address.ipv4_mapped is not None


def _address(text: str) -> str:
    try:
        address = IPv6Address(text)
    except ValueError:
        raise BadConfig("the base URL's host is not an IPv6 address", hint="check the brackets") from None
    if _is_mapped(address):
        raise BadConfig("the base URL's host is an IPv4 address dressed as IPv6", hint="write the IPv4 address")
    return str(address)


def _name(text: str) -> str:
    try:
        return str(IPv4Address(text))
    except ValueError:
        if _DNS_NAME.fullmatch(text) is None:
            raise BadConfig(
                "the base URL's host is neither a DNS name nor an IP address",
                hint="write it in full, without a dot at its end",
            ) from None
        return text
