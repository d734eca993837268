"""The quickstart itself: set up, start, bootstrap, store, route, ask, and stay or stop."""

from __future__ import annotations

import io
import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

from treq.client import HTTPClient
from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.internet.task import deferLater
from twisted.web.client import Agent, ResponseFailed
from twisted.web.http_headers import Headers

from iop.cli.credential_api import CredentialApi, Json, read_token
from iop.cli.host import actor
from iop.cli.quickstart.configs import STAND_IN_TARGET, write_configs
from iop.cli.quickstart.home import TITLES, Home, Member, Settings, members
from iop.cli.quickstart.hops import Hop, complete, hops, provider_hop
from iop.cli.quickstart.processes import PROVIDER, Children, QuickstartFailed
from iop.crypto.tokens import mint
from iop.files import read_private, write_private
from iop.net.tls import WebClientPolicy
from iop.records import TokenKind
from iop.secret import Secret
from iop.store.sqlite import open_sqlite
from iop.testing.provider import MODEL as STAND_IN_MODEL
from iop.units import SECRET_LIMIT, Role, new_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from iop.cli.quickstart.processes import Child
    from iop.process.role import IReactor

QUESTION: Final = "Say hello in one sentence."
_CHAT_SECONDS: Final = 60.0
_ANSWER_LIMIT: Final = 1024 * 1024
_LOG_TRIES: Final = 40


def typed(program: str) -> str:
    """What to type for ``iop`` or what is installed with it: as ``iop`` was typed, since it need not be in the PATH."""
    this = Path(sys.argv[0])
    return quote(str(this.with_name(program))) if this.name == "iop" else program


@dataclass(frozen=True, slots=True)
class Running:
    """A deployment that answered: what it is reached by, and what came of the first request."""

    document: Json
    answer: str
    seen: list[Hop]


class Quickstart:
    """One run.

    :param home: the folder, held.
    :param settings: what is decided; its upstream is used.
    :param secret: the upstream's secret if one was given; disposed of by the caller.
    :param say: called with each step's name before it begins.
    """

    def __init__(
        self, reactor: IReactor, home: Home, settings: Settings, secret: Secret | None, say: Callable[[str], None]
    ) -> None:
        self._reactor: Any = reactor
        self._home = home
        self._settings = settings
        self._secret = secret
        self._say = say
        self._children = Children(reactor, home)
        self._told = False

    async def run(self, ready: Callable[[Running], None], *, once: bool) -> bool:
        """Start everything, tell ``ready``, and, unless ``once``, go on until a signal or the end of a process.

        Whatever happens, no process is left.

        :returns: False if a signal came before it was ready.
        :raises QuickstartFailed: if a process or the request failed.
        """
        end: Deferred[bool] = Deferred()
        work = Deferred.fromCoroutine(self._until_done(ready, once, end))
        work.addBoth(lambda result: None if end.called else end.callback(result))

        def interrupted() -> None:
            # first the end: a step may take its cancellation for a failure of what it waits for, and try again
            if not end.called:
                end.callback(self._told)
                work.cancel()

        self._reactor.callWhenRunning(self._on_signals, interrupted)
        try:
            return await end
        finally:
            self._say("Stopping")
            await self._children.stop()

    def _on_signals(self, what: Callable[[], None]) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._reactor.callFromThread(what))

    async def _until_done(self, ready: Callable[[Running], None], once: bool, end: Deferred[bool]) -> bool:
        running = await self._start()
        if not end.called:
            self._told = True
            ready(running)
            if not once:
                await self._watch()
        return self._told

    async def _watch(self) -> None:
        """Go on as long as every role has a process; what one can be spared of is said.

        :raises QuickstartFailed: with the last of a role.
        """
        nodes = {member.key: member for member in members(self._settings.nodes) if member.role is Role.NODE}
        while True:
            ended = await self._children.deaths.get()
            node = nodes.pop(ended.name, None)
            if node is None or not nodes:
                raise ended.failure("ended by itself")
            self._say(
                f"{node.name} ended ({ended.end}); the others go on. To start it again, until you end it yourself:"
            )
            self._say(f"  {typed('twistd')} -n --pidfile= iop-node --config {quote(str(self._home.config(node)))}")

    async def _start(self) -> Running:
        home, settings = self._home, self._settings
        # the reactor first: then signals are ours, and what a child does is noticed
        await deferLater(self._reactor, 0)
        self._say("Certificates, keys, store, configuration")
        home.check_whole()
        # before everything that is made for this deployment
        home.keep(settings)
        home.make_certificates(settings.nodes)
        home.make_keys()
        home.make_store(settings.deployment)
        write_configs(home, settings)
        self._say("Principal and tokens")
        await self._make_principal()
        if settings.upstream is None:
            self._say("Local stand-in provider")
            await self._start_stand_in()
        started: dict[Member, Child] = {}
        for member in members(settings.nodes):
            self._say(TITLES[member.role] if member.number == 1 else f"{TITLES[member.role]} {member.number}")
            started[member] = await self._children.start_role(member)
        self._say("Waiting until they are connected")
        # the Edge last: it is ready with the others
        for member in sorted(started, key=lambda member: member.role is Role.EDGE):
            await self._children.until_ready(started[member], settings.ports[member.status_listener])
        self._say("Provider secret and route, over the credential HTTPS API")
        await self._store_and_route()
        self._say("One chat completion, through the Edge")
        answer, request_id = await self._ask()
        return Running(self._document(started), answer, await self._hops(request_id))

    # -- set-up -------------------------------------------------------------------------------------------------------

    async def _make_principal(self) -> None:
        """A principal with its two tokens. The use token is written last: with it, everything before it is there."""
        home = self._home
        if home.use_token.exists():
            return
        use, manage = mint(TokenKind.USE), mint(TokenKind.MANAGE)
        store = await open_sqlite(home.database, self._settings.deployment, self._reactor)
        try:
            # named anew each time: tokens that a cut-off run did not get to write are nobody's
            await store.principals.create(f"quickstart-{new_id()}", [use.record, manage.record], actor())
        finally:
            await store.close()
        with use.text, manage.text:
            write_private(home.manage_token, manage.text.reveal())
            write_private(home.use_token, use.text.reveal())

    async def _start_stand_in(self) -> None:
        port_file = self._home.run / "provider.port"
        port_file.unlink(missing_ok=True)
        child = self._children.start(
            PROVIDER,
            [
                *(sys.executable, "-m", "iop.testing.provider"),
                *("--secret-file", str(self._home.provider_secret)),
                *("--port-file", str(port_file)),
                *("--port", str(self._settings.ports["provider"])),
            ],
        )
        await self._children.until(child, "did not start", port_file.exists)

    async def _store_and_route(self) -> None:
        """A slot with the secret, unless there is one already, and the model's route to it."""
        upstream = self._settings.upstream
        target = upstream.target if upstream else STAND_IN_TARGET
        profile = upstream.profile if upstream else "openai"
        model = upstream.model if upstream else STAND_IN_MODEL
        api = CredentialApi(self._reactor, self._url("credential_https"), self._home.ca, self._home.manage_token)
        stored = self._home.stored()
        with self._own_secret() as secret:
            if stored is None or not stored.is_for(target, profile) or (len(secret) and not stored.is_of(secret)):
                made = await api.create_slot(f"quickstart-{new_id()}", profile, target, secret)
                stored = self._home.keep_stored(str(made["slot"]), target, profile, secret)
        route = await api.route(model)
        if route is None or route["slot"] != stored.slot:
            revision = None if route is None else int(str(route["revision"]))
            await api.put_route(model, stored.slot, model, "", revision)

    def _own_secret(self) -> Secret:
        """The secret to store; empty if the one stored before is to be used."""
        if self._settings.upstream is None:
            return Secret(read_private(self._home.provider_secret, SECRET_LIMIT))
        return Secret(bytearray() if self._secret is None else bytearray(self._secret.reveal()))

    # -- the request --------------------------------------------------------------------------------------------------

    async def _ask(self) -> tuple[str, str]:
        """The model's answer, and the id under which the roles logged the request."""
        upstream = self._settings.upstream
        model = upstream.model if upstream else STAND_IN_MODEL
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": QUESTION}]}).encode()
        token = read_token(self._home.use_token)
        content = bytearray()

        def keep(piece: bytes) -> None:
            content.extend(piece[: _ANSWER_LIMIT - len(content)])

        try:
            response = await HTTPClient(Agent(self._reactor, WebClientPolicy(self._home.ca))).request(
                "POST",
                self._url("api") + "/v1/chat/completions",
                headers=Headers({"authorization": [f"Bearer {token}"], "content-type": ["application/json"]}),
                data=io.BytesIO(body),
                timeout=_CHAT_SECONDS,
                unbuffered=True,
                reactor=self._reactor,
            )
            await response.collect(keep)
        except (ConnectError, ConnectionClosed, ResponseFailed, TimeoutError) as error:
            raise QuickstartFailed(
                f"the Edge did not answer ({type(error).__name__})", hint=f"its log: {self._home.log('edge')}"
            ) from None
        text = bytes(content).decode("utf-8", "replace")
        if response.code != 200:
            raise QuickstartFailed(
                f"the request was answered {response.code}: {_reason(text)}", hint=f"logs are in {self._home.logs}"
            )
        request_id = response.headers.getRawHeaders("x-request-id", [""])[0]
        return said(text), request_id

    async def _hops(self, request_id: str) -> list[Hop]:
        """What the roles logged; the last lines may be written a moment after the answer."""
        for _ in range(_LOG_TRIES):
            found = hops(self._home, self._settings.nodes, request_id)
            if complete(found):
                break
            await deferLater(self._reactor, 0.05)
        stand_in = provider_hop(self._home) if self._settings.upstream is None else None
        return found if stand_in is None else [*found, stand_in]

    # -- what it is reached by ----------------------------------------------------------------------------------------

    def _url(self, listener: str) -> str:
        return f"https://127.0.0.1:{self._settings.ports[listener]}"

    def _document(self, started: dict[Member, Child]) -> Json:
        pids: dict[str, int | None] = {role.value: None for role in Role}
        pids |= {member.key: child.pid for member, child in started.items()}
        home, upstream = self._home, self._settings.upstream
        return {
            "home": str(home.root),
            "edge_url": self._url("api"),
            "edge_ca": str(home.ca),
            "token_file": str(home.use_token),
            "manage_token_file": str(home.manage_token),
            "credential_url": self._url("credential_https"),
            "credential_ca": str(home.ca),
            "client_url": None,
            "client_ca": None,
            "operator_socket": None if home.operator_socket is None else str(home.operator_socket),
            "model": upstream.model if upstream else STAND_IN_MODEL,
            "pids": pids,
        }


def said(text: str) -> str:
    """What the model says in a chat completion.

    :raises QuickstartFailed: if the provider answered with something else.
    """
    try:
        return str(json.loads(text)["choices"][0]["message"]["content"])
    except (ValueError, LookupError, TypeError):
        raise QuickstartFailed(
            "the provider answered 200, but with no chat completion",
            hint="--upstream is the URL before /chat/completions; is it that of an OpenAI-compatible API?",
        ) from None


def _reason(text: str) -> str:
    """What an error document says to people, or as much of anything else as fits a screen."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return text[:500]
