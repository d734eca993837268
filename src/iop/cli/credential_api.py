"""The credential HTTPS API from its client's side: a checked server, a token from a file, typed problems."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, urlencode, urlsplit

from OpenSSL.SSL import Error as TlsError
from treq.client import HTTPClient
from twisted.internet.defer import CancelledError, TimeoutError
from twisted.internet.error import ConnectError, ConnectionClosed, DNSLookupError
from twisted.web.client import Agent, ResponseFailed
from twisted.web.http_headers import Headers

from iop.crypto.tokens import parse_token
from iop.errors import (
    AlreadyExists,
    ApiRefused,
    BadConfig,
    FinalState,
    IopError,
    NotConfirmed,
    NotFound,
    RevisionMismatch,
    StoreBusy,
    StoreUnavailable,
)
from iop.files import read_private
from iop.net.tls import WebClientPolicy

if TYPE_CHECKING:
    from pathlib import Path

    from iop.process.role import IReactor
    from iop.secret import Secret

#: Seconds one call may take: a mutation waits for the slowest Edge before it answers.
CALL_SECONDS = 30.0
#: Bytes of an answer at most.
ANSWER_LIMIT = 4 * 1024 * 1024
_TOKEN_FILE_LIMIT = 1024

Json = dict[str, object]


class ApiUnreachable(IopError):
    """No answer came; whether a mutation happened is unknown."""

    code: ClassVar[str] = "api_unreachable"
    retryable: ClassVar[bool] = True


#: Problems that are raised here as what they were there.
_SAME: dict[str, type[IopError]] = {
    error.code: error
    for error in (AlreadyExists, FinalState, NotConfirmed, NotFound, RevisionMismatch, StoreBusy, StoreUnavailable)
}


class CredentialApi:
    """A client for one principal.

    :param reactor: the reactor to connect on.
    :param url: ``https://host:port``.
    :param ca: PEM file of the authority that the server's certificate must come from.
    :param token_file: private file with a ``manage`` token.
    :raises BadConfig: for a URL that is not of that form.
    :raises MalformedToken: for a token that was mistyped, before anything is sent.
    """

    def __init__(self, reactor: IReactor, url: str, ca: Path, token_file: Path) -> None:
        if not _is_origin(url):
            raise BadConfig(
                "the credential API's URL must be https://HOST:PORT", hint="for example --url https://127.0.0.1:7444"
            )
        self._url = url.rstrip("/")
        self._token = read_token(token_file)
        self._reactor: Any = reactor
        self._client = HTTPClient(Agent(reactor, WebClientPolicy(ca), connectTimeout=10.0))

    async def slots(self) -> Json:
        """``{"slots": [...]}``, by name."""
        return await self._call("GET", "/v1/slots", {}, None)

    async def create_slot(self, name: str, profile: str, target: str, secret: Secret) -> Json:
        """Store ``secret`` as the octets it is (K11)."""
        path = "/v1/slots?" + urlencode({"name": name, "profile": profile, "target": target})
        return await self._call("POST", path, {"content-type": "application/octet-stream"}, bytes(secret.reveal()))

    async def slot(self, slot: str) -> Json:
        """One slot, by its id."""
        return await self._call("GET", f"/v1/slots/{quote(slot, safe='')}", {}, None)

    async def rotate_slot(self, slot: str, secret: Secret) -> Json:
        """Put ``secret`` in the place of the one that is in the slot, as the slot is now (K13)."""
        headers = {"content-type": "application/octet-stream", **await self._as_it_is(slot)}
        return await self._call("PUT", f"/v1/slots/{quote(slot, safe='')}/secret", headers, bytes(secret.reveal()))

    async def change_slot(self, slot: str, change: str) -> Json:
        """``disable``, ``enable`` or ``revoke`` the slot, as it is now (K13)."""
        return await self._call("POST", f"/v1/slots/{quote(slot, safe='')}/{change}", await self._as_it_is(slot), b"")

    async def _as_it_is(self, slot: str) -> dict[str, str]:
        return {"if-match": f'"{(await self.slot(slot))["revision"]}"'}

    async def routes(self) -> Json:
        """``{"routes": [...]}``, by model."""
        return await self._call("GET", "/v1/routes", {}, None)

    async def put_route(self, model: str, slot: str, upstream_model: str, selector: str, revision: int | None) -> Json:
        """Make the route of ``model``, or, with its current ``revision``, change it (K13)."""
        precondition = {"if-none-match": "*"} if revision is None else {"if-match": f'"{revision}"'}
        body = json.dumps({"slot": slot, "upstream_model": upstream_model, "selector": selector}).encode()
        headers = {"content-type": "application/json", **precondition}
        return await self._call("PUT", f"/v1/routes/{quote(model, safe='')}", headers, body)

    async def route(self, model: str) -> Json | None:
        """The route of ``model``, or None if there is none."""
        routes = (await self.routes())["routes"]
        if not isinstance(routes, list):
            raise _bad_answer(200)
        return next((route for route in routes if route["model"] == model), None)

    async def _call(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Json:
        content = bytearray()

        def keep(piece: bytes) -> None:
            content.extend(piece)
            if len(content) > ANSWER_LIMIT:
                raise ApiRefused(502, "bad_answer", "the server's answer is longer than this client takes")

        try:
            response = await self._client.request(
                method,
                self._url + path,
                headers=Headers({"authorization": [f"Bearer {self._token}"], **{k: [v] for k, v in headers.items()}}),
                data=None if body is None else io.BytesIO(body),
                timeout=CALL_SECONDS,
                allow_redirects=False,
                unbuffered=True,
                reactor=self._reactor,
            )
            await response.collect(keep)
        except (ConnectError, ConnectionClosed, DNSLookupError, ResponseFailed, CancelledError, TimeoutError) as error:
            raise self._unreachable(error) from None
        return read_answer(response.code, bytes(content))

    def _unreachable(self, error: Exception) -> ApiUnreachable:
        if isinstance(error, ResponseFailed):
            if any(isinstance(reason.value, TlsError) for reason in error.reasons):
                return ApiUnreachable(
                    f"{self._url} is not the server that it should be",
                    hint="check --ca, that the server's certificate is for this host, and --url",
                )
            return ApiUnreachable(f"{self._url} was reached but did not answer", hint="check --url, and try again")
        if isinstance(error, DNSLookupError):
            return ApiUnreachable(f"the host of {self._url} is not known", hint="check --url")
        return ApiUnreachable(f"nothing answers at {self._url}", hint="check --url, and that the Control Plane runs")


def _is_origin(url: str) -> bool:
    """Whether ``url`` is ``https://HOST[:PORT]`` and nothing else."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    plain = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username)
    return parts.scheme == "https" and bool(parts.hostname) and plain and port != 0


def read_token(path: Path) -> str:
    """The token in a private file, with or without a newline after it.

    :raises FileRefused: if the file is open to others or not there.
    :raises MalformedToken: if it holds no token.
    """
    text = read_private(path, _TOKEN_FILE_LIMIT)
    try:
        return parse_token(text.decode("ascii", "replace").strip())
    finally:
        text[:] = bytes(len(text))


def read_answer(status: int, content: bytes) -> Json:
    """The object of a good answer; the error of any other."""
    try:
        value = json.loads(content)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise _bad_answer(status)
    if 200 <= status < 300:
        return value
    if not isinstance(value.get("code"), str):
        raise _bad_answer(status)
    code, message, hint = value["code"], str(value.get("detail", "")), str(value.get("hint", ""))
    if code in _SAME:
        raise _SAME[code](message, hint=hint)
    raise ApiRefused(status, code, message, hint=hint)


def _bad_answer(status: int) -> ApiRefused:
    return ApiRefused(
        status,
        "bad_answer",
        f"the server answered {status}, but not as the credential API does",
        hint="check --url: it is the address in [credential_https] of the Control Plane",
    )
