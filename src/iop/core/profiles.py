"""How a credential is used: the closed table of profiles (architecture, Who configures what).

A profile fixes the header a credential travels in, the headers a provider expects by default, and the only calls that a
lease may be used for (P5, P17).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from iop.core.headers import HOP_BY_HOP, NODES_OWN, REQUEST_HEADERS, is_header_name
from iop.errors import BadCredential
from iop.secret import Secret

#: The profile that sends no credential, the only one of legacy mode (E17).
NO_CREDENTIAL: Final = "none"

#: Characters of a header's name or a credential's scheme that a target may ask for.
_LIMIT: Final = 64
_SCHEME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]*\Z")
#: Everything a credential may consist of: printable ASCII. No CR, LF, NUL or other control byte reaches a header (P18).
_PRINTABLE: Final = re.compile(rb"[\x20-\x7e]*\Z")
#: Headers that cannot hold a credential: a request would say two things in one, or not be a request any more.
_TAKEN: Final = HOP_BY_HOP | REQUEST_HEADERS | {NODES_OWN[0]}


@dataclass(frozen=True, slots=True)
class Profile:
    """One row of the table.

    :ivar header: lower-case name of the header the credential goes in; empty when there is none.
    :ivar scheme: word before the credential, as in ``Bearer``; empty when the header holds the credential alone.
    :ivar default_headers: sent unless the request brings the header itself.
    :ivar calls: every (method, path below the base URL) a lease of this profile may be used for.
    :ivar adjustable: whether a Node's target may name another header and scheme.
    """

    name: str
    header: str
    scheme: str
    calls: frozenset[tuple[str, str]] = field(repr=False)
    default_headers: tuple[tuple[str, str], ...] = ()
    adjustable: bool = False

    def allows(self, method: str, path: str) -> bool:
        """Whether exactly this method and path stand in the profile's list; nothing is normalised first (P17)."""
        return (method, path) in self.calls

    def placed(self, header: str, scheme: str) -> Profile:
        """This profile with the credential in another header, as a Node's target may ask for.

        :raises ValueError: if the profile is fixed, header or scheme are not HTTP tokens, or the header is one that
            says something else already.
        """
        if not self.adjustable:
            raise ValueError(f"profile {self.name} fixes its header and scheme")
        if not is_header_name(header) or not _SCHEME.match(scheme) or max(len(header), len(scheme)) > _LIMIT:
            raise ValueError("header must be a lower-case HTTP token, scheme an HTTP token or empty")
        if header in _TAKEN:
            raise ValueError(f"header must not be {header}, which every request has for another purpose")
        return replace(self, header=header, scheme=scheme)


_OPENAI_CALLS: Final = frozenset(
    {
        ("GET", "/models"),
        ("POST", "/chat/completions"),
        ("POST", "/completions"),
        ("POST", "/embeddings"),
        ("POST", "/responses"),
    }
)
_ANTHROPIC_CALLS: Final = frozenset(
    {
        ("GET", "/models"),
        ("POST", "/messages"),
        ("POST", "/messages/count_tokens"),
    }
)

#: Profile by name. Closed: a name that is not here is refused, it never becomes a default.
PROFILES: Final[Mapping[str, Profile]] = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            Profile("openai", "authorization", "Bearer", _OPENAI_CALLS),
            Profile("anthropic", "x-api-key", "", _ANTHROPIC_CALLS, (("anthropic-version", "2023-06-01"),)),
            Profile("openai-compatible", "authorization", "Bearer", _OPENAI_CALLS, adjustable=True),
            Profile(NO_CREDENTIAL, "", "", _OPENAI_CALLS),
        )
    }
)


def profile_name(name: str) -> str:
    """``name``, if the table has it; :class:`ValueError` with the names that there are otherwise."""
    if name not in PROFILES:
        raise ValueError(f"must be one of {', '.join(sorted(PROFILES))}")
    return name


def check_secret(profile: Profile, secret: Secret) -> None:
    """Refuse a secret that this profile could not send (P18).

    :raises BadCredential: if it is empty where a credential is needed, present where none is sent, or holds anything
        but printable ASCII. The message never quotes it.
    """
    if not profile.header:
        if len(secret):
            raise BadCredential(f"profile {profile.name} sends no credential", hint="store an empty secret")
        return
    if not len(secret):
        raise BadCredential(f"profile {profile.name} needs a credential", hint="store the provider's key")
    if not _PRINTABLE.match(secret.reveal()):
        raise BadCredential(
            "the credential holds bytes that cannot stand in an HTTP header",
            hint="store it without line ends, tabs or characters outside ASCII",
        )


def credential_header(profile: Profile, secret: Secret) -> tuple[str, bytearray] | None:
    """The header that carries ``secret`` upstream, its value in a buffer the caller sends and then zeroes.

    :returns: lower-case name and value, or None for a profile that sends no credential.
    :raises BadCredential: as :func:`check_secret`.
    """
    check_secret(profile, secret)
    if not profile.header:
        return None
    value = bytearray(f"{profile.scheme} ".encode("ascii") if profile.scheme else b"")
    value += secret.reveal()
    return profile.header, value
