"""Strict configuration: one TOML file per role, read into frozen models that know every key.

A role's ``config.py`` builds its models from :class:`Strict`, the shared tables and the field types of this module;
:func:`load` reads a file into one. Whatever is wrong with a file is a single :class:`~iop.errors.BadConfig` that names
file, table and key and lists what is wrong, so that nobody has to start a role five times to find five mistakes.

Relative paths are relative to the configuration file's folder. Files with secrets are only ever named, never inlined.
"""

from __future__ import annotations

import ipaddress
import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, NoReturn, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, ValidationError, ValidationInfo
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory

from iop.errors import BadConfig, FileRefused
from iop.files import read_public, straightened
from iop.units import Role, is_name, is_request_id, is_trust_domain

#: Bytes a configuration file may have at most.
CONFIG_LIMIT = 1024 * 1024
#: Whose a file is, by the first of these tables that it has: a Node's names its Edge too, an Edge's its Control Plane.
_OWN_TABLES = (("node", Role.NODE), ("edge", Role.EDGE), ("control_plane", Role.CONTROL_PLANE))
#: Mistakes listed in one message at most.
PROBLEMS_LISTED = 10


class Strict(BaseModel):
    """A table that is frozen once read, has no keys but its own, and takes no value of another type."""

    #: Environment variables that take the place of a key: name to (table, key).
    environment: ClassVar[Mapping[str, tuple[str, str]]] = {}

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True, validate_default=False
    )


M = TypeVar("M", bound=Strict)


# -- field types ------------------------------------------------------------------------------------------------------


def _must(check: Callable[[str], bool], what: str) -> AfterValidator:
    def checked(value: str) -> str:
        if not check(value):
            raise ValueError(what)
        return value

    return AfterValidator(checked)


def _resolved(path: Path, info: ValidationInfo) -> Path:
    folder = info.context["folder"] if isinstance(info.context, Mapping) else Path()
    return straightened(Path(folder, path))


class _Recorded:
    """A reactor to Twisted's endpoint parsers that only remembers where it was to listen or connect."""

    def __init__(self) -> None:
        self.host = ""
        self.port = 0

    def listenTCP(self, port: int, factory: object, backlog: int = 50, interface: str = "") -> None:
        _checked_port(port, lowest=0)
        self.host, self.port = interface, port

    def connectTCP(
        self, host: str, port: int, factory: object, timeout: float = 30, bindAddress: tuple[str, int] | None = None
    ) -> None:
        _checked_port(port, lowest=1)
        self.host, self.port = host, port


def _checked_port(port: int, lowest: int) -> None:
    if not lowest <= port <= 65535:
        raise ValueError(f"port {port} is outside {lowest}-65535")


def listening_address(text: str) -> tuple[str, int]:
    """Interface (empty for all) and port (0 for any that is free) of a server endpoint string, or ValueError."""
    return _endpoint_address(text, server=True, example="tcp:port=0:interface=127.0.0.1")


def dialled_address(text: str) -> tuple[str, int]:
    """Host and port of a client endpoint string, or ValueError."""
    return _endpoint_address(text, server=False, example="tcp:host=edge.example.org:port=7443")


def _endpoint_address(text: str, *, server: bool, example: str) -> tuple[str, int]:
    """Let Twisted's own parser judge the text; TLS is never spelled there, because our policies alone decide it."""
    recorded = _Recorded()
    problem = f"is not an endpoint of the form {example}"
    if not text.startswith(("tcp:", "tcp6:") if server else "tcp:"):
        raise ValueError(problem)
    outcome: list[BaseException] = []
    try:
        if server:
            attempt = serverFromString(recorded, text).listen(Factory())
        else:
            attempt = clientFromString(recorded, text).connect(Factory())
    except (ValueError, TypeError, KeyError):
        raise ValueError(problem) from None
    attempt.addErrback(lambda failure: outcome.append(failure.value))
    if outcome:
        raise ValueError(f"{problem} ({outcome[0]})")
    return recorded.host, recorded.port


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _server_endpoint(text: str, info: ValidationInfo) -> str:
    loopback_only = isinstance(info.context, Mapping) and info.context["loopback_only"]
    if not _is_loopback(listening_address(text)[0]) and loopback_only:
        raise ValueError("must listen on loopback (interface=127.0.0.1), because this file is marked quickstart")
    return text


def _loopback_endpoint(text: str) -> str:
    if not _is_loopback(listening_address(text)[0]):
        raise ValueError("must listen on loopback (interface=127.0.0.1)")
    return text


def _client_endpoint(text: str) -> str:
    if not dialled_address(text)[0]:
        raise ValueError("names no host")
    return text


#: The name of an Edge, Node, Control Plane, target or provider.
Name = Annotated[str, _must(is_name, "must be 1-63 of a-z 0-9 . _ -")]
#: The trust domain of SPIFFE ids.
TrustDomain = Annotated[str, _must(is_trust_domain, "is not a domain name")]
#: A deployment's id.
DeploymentId = Annotated[str, _must(is_request_id, "must be 1-128 of A-Z a-z 0-9 . _ -")]
#: A server name that a certificate is checked for.
ServerName = Annotated[str, StringConstraints(min_length=1, max_length=253)]
#: A path, relative to the configuration file's folder unless absolute.
ConfigPath = Annotated[Path, AfterValidator(_resolved)]
#: A Twisted server endpoint string, ``tcp:port=0:interface=127.0.0.1``; on loopback in a file marked ``quickstart``.
ServerEndpoint = Annotated[str, AfterValidator(_server_endpoint)]
#: A Twisted server endpoint string that is on loopback whatever the file is marked.
LoopbackEndpoint = Annotated[str, AfterValidator(_loopback_endpoint)]
#: A Twisted client endpoint string, ``tcp:host=127.0.0.1:port=7443``.
ClientEndpoint = Annotated[str, AfterValidator(_client_endpoint)]


# -- tables that every role has ---------------------------------------------------------------------------------------


class DeploymentTable(Strict):
    """``[deployment]``: which deployment this process belongs to."""

    id: DeploymentId
    trust_domain: TrustDomain


class TlsTable(Strict):
    """``[tls]``: certificate chain, its private key, and the authorities whose peers are accepted (PEM files)."""

    certificate: ConfigPath
    key: ConfigPath
    trust: ConfigPath


class StatusTable(Strict):
    """``[status]``: where /healthz and /readyz answer; always on loopback."""

    listen: LoopbackEndpoint


class RunTable(Strict):
    """``[run]``: the folder where a started role writes ``<role>.json`` with the addresses it bound."""

    directory: ConfigPath


class RoleConfig(Strict):
    """What the configuration of every role has; a role's own model adds its tables."""

    #: Written by ``iop quickstart``: listeners beyond loopback are refused.
    quickstart: bool = False
    deployment: DeploymentTable
    status: StatusTable
    run: RunTable


# -- reading ----------------------------------------------------------------------------------------------------------


def load(path: Path, model: type[M], role: Role | None = None) -> M:
    """Read the TOML file at ``path`` into ``model``.

    What the environment says in the place of a key is judged like the key.

    :param role: whose configuration it must be, if that matters.
    :raises BadConfig: for a file that cannot be read, is not TOML, is another role's, or does not fit the model in one
        or more places.
    """
    document = read_document(path)
    found = role_of(document)
    if role is not None and found is not None and found is not role:
        raise _of_another_role(path, found, role)
    for variable, (table, key) in model.environment.items():
        given = os.environ.get(variable)
        if given is not None and isinstance(there := document.setdefault(table, {}), dict):
            there[key] = given
    context = {"folder": path.absolute().parent, "loopback_only": document.get("quickstart") is True}
    try:
        # JSON, because strict models take its lists for tuples and its strings for paths, and nothing else for either
        text = json.dumps(document, default=_refuse_date)
        return model.model_validate_json(text, context=context)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)
        places = [problem["loc"] for problem in wrong]
        problems = [
            _told(_place(model, problem["loc"], document), problem["type"], problem["msg"])
            for problem in wrong
            if problem["type"] != "default_factory_not_called"  # the mistake that it waits for is told
            and (problem["type"] != "too_short" or not _inside(problem["loc"], places))
        ]
    except ValueError as error:
        problems = [str(error)]
    raise _refusal(path, problems)


def read_document(path: Path) -> dict[str, object]:
    """The TOML document at ``path``, of whatever tables.

    :raises BadConfig: for a file that cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(read_public(path, CONFIG_LIMIT).decode())
    except FileRefused as error:
        raise BadConfig(error.message, hint=error.hint) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "it is not UTF-8, or nested too deep"
        raise _refusal(path, [f"it is not TOML: {reason}"]) from None


def role_of(document: Mapping[str, object]) -> Role | None:
    """Whose configuration a document is, if it is a role's."""
    return next((role for table, role in _OWN_TABLES if table in document), None)


def _of_another_role(path: Path, found: Role, wanted: Role) -> BadConfig:
    return BadConfig(
        f"{path} configures role {found.value}, where role {wanted.value} is needed",
        hint=f"give the configuration file of the {wanted.value}",
    )


def _inside(place: tuple[int | str, ...], places: Sequence[tuple[int | str, ...]]) -> bool:
    """Whether an entry of the array at ``place`` is wrong, so that it was not counted and the array seems too short."""
    return any(other[: len(place)] == place != other for other in places)


def _refuse_date(value: object) -> NoReturn:
    raise ValueError(f"{value} is a date or time, which no key takes; write it as a string")


def _refusal(path: Path, problems: list[str]) -> BadConfig:
    hint = f"correct {path} and check it with: iop config check {path}"
    if len(problems) == 1:
        return BadConfig(f"{path}: {problems[0]}", hint=hint)
    listed = "".join(f"\n  {problem}" for problem in problems[:PROBLEMS_LISTED])
    more = f"\n  and {len(problems) - PROBLEMS_LISTED} more" if len(problems) > PROBLEMS_LISTED else ""
    return BadConfig(f"{path} has {len(problems)} problems:{listed}{more}", hint=hint)


def _place(model: type[BaseModel], location: tuple[int | str, ...], document: Mapping[str, object]) -> str:
    """``[table.table] key: `` of a problem; entries of an array are counted from 1, the whole file has no place."""
    if not location:
        return ""
    if len(location) == 1:
        field = model.model_fields.get(str(location[0]))
        known = field is not None and isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        return f"[{location[0]}]: " if known or _is_table(document.get(str(location[0]))) else f"{location[0]}: "
    table = ""
    for step in location[:-1]:
        table += f" #{step + 1}" if isinstance(step, int) else f".{step}" if table else step
    last = location[-1]
    return f"[{table}] #{last + 1}: " if isinstance(last, int) else f"[{table}] {last}: "


def _is_table(value: object) -> bool:
    """Whether a value is a table of TOML, or an array of them."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(each, dict) for each in value))


def _told(place: str, kind: str, message: str) -> str:
    if kind == "missing":
        return f"{place}is missing"
    if kind == "extra_forbidden":
        return f"{place}is not a known {'table' if place.endswith(']: ') else 'key'}"
    if kind == "too_short":
        return f"{place}must have at least one entry"
    text = message.removeprefix("Value error, ").replace("Input should be", "must be", 1)
    return place + text[:1].lower() + text[1:]
