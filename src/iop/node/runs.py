"""The Node's half of runs: checks and opens a lease, calls the upstream with it, streams back under credit (R1-R11).

Decisions about messages are :class:`iop.core.runs.NodeRun`'s; this module turns them into messages and calls.

The secret of a lease lives in one stack frame while the credential header is built and handed to the upstream, and then
in its run as long as an answer may have to be searched for it: until a 2xx head came, or until the run ends. Both
buffers are zeroed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from google.protobuf.message import Message
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from zope.interface import implementer

from iop.core.headers import NODES_OWN, REQUEST_HEADERS, header_fault
from iop.core.profiles import Profile, credential_header
from iop.core.runs import NodePhase, NodeRun, Verdict
from iop.errors import (
    BadCredential,
    CannotOpen,
    MalformedFrame,
    ProtocolViolation,
    TooManyInFlight,
    UnexpectedMessage,
    UpstreamFailed,
    UpstreamLate,
)
from iop.interfaces import IClock, IPeer
from iop.net.upstream import IUpstreamCall, IUpstreamReceiver
from iop.node.leases import IGrants
from iop.node.metrics import EDGE_LOST, WHOLE, NodeMetrics
from iop.node.redact import Redactor, passed_headers
from iop.node.targets import Provider
from iop.secret import Secret
from iop.units import IN_FLIGHT_LIMIT, is_request_id
from iop.wire import runtime_pb2

log = Logger()

#: What a run's end says for each code that a Node gives; nothing in it names an address or quotes an upstream (R10).
FAILURE_MESSAGES: Final[Mapping[str, str]] = {
    "lease_refused": "the lease is not one that this node may use for this request",
    "no_such_provider": "this node does not serve that provider",
    "not_allowed": "the request has headers that may not be sent to a provider",
    "cancelled": "the run was cancelled",
    "upstream_unreachable": "the provider could not be reached",
    "upstream_busy": "this node has as many connections to the provider as it may",
    "upstream_tls": "the provider could not be authenticated",
    "upstream_timeout": "the provider did not answer in time",
    "upstream_broke": "the provider's answer ended early or was not valid HTTP",
    "upstream_redirect": "the provider answered with a redirect, which is not followed",
    "upstream_encoded_error": "the provider answered with an encoded error, which is not passed on",
    "draining": "this node is going away",
    "internal": "this node failed for a reason that it logged",
}

_OK: Final = range(200, 300)
_REDIRECT: Final = range(300, 400)
_ERROR: Final = range(400, 600)


@implementer(IUpstreamReceiver)
class Run:
    """One open run, between the Edge and one call of an upstream; made by :class:`Runs`.

    :param secret: searched for in the answer (R9); disposed of as soon as it is not needed for that.
    """

    def __init__(self, runs: Runs, request: runtime_pb2.RunRequest, machine: NodeRun, secret: Secret) -> None:
        self._request_id = request.request_id
        self._number = request.run
        self._runs = runs
        self._machine = machine
        self._secret = secret
        self._call: IUpstreamCall | None = None
        self._redactor: Redactor | None = None
        self._unreturned = 0
        self._status = 0
        self._bytes = 0
        self._began = runs.clock.boot()

    def start(self, call: IUpstreamCall) -> None:
        """The upstream was called; it may have failed already."""
        if self._machine.phase is NodePhase.ENDED:
            call.cancel()
        else:
            self._call = call

    # from the Edge

    def body(self, data: bytes, last: bool) -> None:
        """A piece of the request body came. An upstream that was called knows the length, so ``last`` adds nothing."""
        if self._machine.piece(len(data), last) is Verdict.PASS and data and self._call is not None:
            self._unreturned += len(data)
            self._call.write(data)

    def credited(self, count: int) -> None:
        """The Edge handed on response bytes."""
        if self._machine.credited(count) is Verdict.PASS:
            self._send_body()
            if self._call is not None and not self._machine.congested:
                self._call.resume()

    def cancel(self) -> None:
        """The Edge wants no more (R5)."""
        if self._machine.cancel() is Verdict.PASS:
            self._end("cancelled", started=True)

    def stop_unless_started(self) -> None:
        """The Edge wants this run only if something was sent upstream already (R11)."""
        started = self._call is None or self._call.started
        if self._machine.stop(started) is not Verdict.PASS:
            return
        if started:
            self._runs.peer.notify(runtime_pb2.RunStarted(run=self._number))
        else:
            self._end("cancelled", started=False)

    def lost(self) -> None:
        """The connection to the Edge ended; nobody is left to be told."""
        if self._machine.lost() is Verdict.PASS:
            self._close(EDGE_LOST)

    # from the upstream

    def head(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        """The upstream's response head: send on what may travel of it, or refuse the answer (R9)."""
        self._runs.metrics.head_seconds.observe(self._runs.clock.boot() - self._began)
        fields = [field for field in passed_headers(headers, self._secret) if header_fault([field]) is None]
        if status in _REDIRECT:
            self.give_up("upstream_redirect", started=True)
        elif status in _ERROR and _is_encoded(headers):
            self.give_up("upstream_encoded_error", started=True)
        elif (status not in _OK and status not in _ERROR) or header_fault(fields) is not None:
            self.give_up("upstream_broke", started=True)
        elif self._machine.head() is Verdict.PASS:
            self._status = status
            if status in _OK:
                self._secret.dispose()
            else:
                self._redactor = Redactor(self._secret)
            head = runtime_pb2.RunHead(run=self._number, status=status)
            head.headers.extend(runtime_pb2.HeaderField(name=name, value=value) for name, value in fields)
            self._runs.peer.notify(head)

    def data(self, data: bytes) -> None:
        """Bytes of the upstream's body."""
        clean = data if self._redactor is None else self._redactor.feed(data)
        if self._machine.data(clean) is Verdict.PASS:
            self._send_body()
            if self._call is not None and self._machine.congested:
                self._call.pause()

    def finished(self) -> None:
        """The upstream's answer is whole."""
        if self._redactor is not None:
            self._machine.data(self._redactor.finish())
        if self._machine.finished() is Verdict.PASS:
            self._call = None
            self._secret.dispose()
            self._send_body()

    def failed(self, reason: UpstreamFailed) -> None:
        """The upstream could not be called, or broke off; or the lease ended before anything was sent (R2)."""
        self._call = None
        self.give_up("lease_refused" if isinstance(reason, UpstreamLate) else reason.code, reason.started)

    def writable(self) -> None:
        """The upstream took everything that was written: return the credit for it (R4)."""
        credit = self._machine.handed_on(self._unreturned)
        self._unreturned = 0
        if credit:
            self._runs.peer.notify(runtime_pb2.RunCredit(run=self._number, bytes=credit))

    def give_up(self, code: str, started: bool) -> None:
        """End the run for a reason of this side's."""
        if self._machine.failed() is Verdict.PASS:
            self._end(code, started)

    def broke(self) -> None:
        """End the run for a bug that it met, which is being handled."""
        log.failure("node.run.broke", request_id=self._request_id)
        self.give_up("internal", started=True)

    # the rest

    def _send_body(self) -> None:
        for data, last in self._machine.pieces():
            self._bytes += len(data)
            self._runs.metrics.answer_bytes.inc(len(data))
            self._runs.peer.notify(runtime_pb2.RunBody(run=self._number, data=data, last=last))
            if last:
                self._close("")

    def _end(self, code: str, started: bool) -> None:
        # the Edge takes this message for the word that nothing goes on upstream
        self._hang_up()
        self._runs.fail(self._number, code, started)
        self._close(code)

    def _hang_up(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def _close(self, code: str) -> None:
        """The run is over: let go of the upstream and of the secret, and say how it went."""
        self._hang_up()
        self._secret.dispose()
        if self._redactor is not None:
            self._redactor.dispose()
            self._redactor = None
        self._runs.metrics.runs.count(code or WHOLE)
        log.info("node.run.finished", request_id=self._request_id, status=self._status, bytes=self._bytes, code=code)
        self._runs.forget(self._number)


class Runs:
    """Every run on one connection to the Edge.

    :param peer: the connection; its application hands what belongs to runs to :meth:`received`, and its end to
        :meth:`lost`.
    :param grants: says which runs may begin, and opens what the Edge sends.
    :param providers: what this Node told the Edge it serves, by id.
    """

    def __init__(
        self, peer: IPeer, grants: IGrants, providers: Mapping[str, Provider], clock: IClock, metrics: NodeMetrics
    ) -> None:
        self.peer = peer
        self.clock = clock
        self.metrics = metrics
        self._grants = grants
        self._providers = providers
        self._open: dict[int, Run] = {}
        self._highest = 0
        self._idle: Deferred[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def received(self, message: Message) -> None:
        """Take a message of the Edge's that belongs to a run.

        :raises ProtocolViolation: for one that may not come now (R1, R4, R7).
        """
        match message:
            case runtime_pb2.RunBody():
                self._pass(message.run, lambda run: run.body(message.data, message.last))
            case runtime_pb2.RunCredit():
                self._pass(message.run, lambda run: run.credited(message.bytes))
            case runtime_pb2.RunCancel():
                self._pass(message.run, Run.stop_unless_started if message.unless_started else Run.cancel)
            case runtime_pb2.RunRequest():
                self._requested(message)
            case _:
                raise UnexpectedMessage("an Edge sent a message that belongs to no run")

    def lost(self) -> None:
        """The connection ended: every upstream call is closed at once."""
        for run in list(self._open.values()):
            run.lost()

    def drain(self) -> Deferred[None]:
        """Refuse new runs from now on; fires when the last open one has ended."""
        self._idle = Deferred()
        self._tell_idle()
        return self._idle

    def give_up(self) -> None:
        """End every open run now, because this process cannot wait for it."""
        for run in list(self._open.values()):
            run.give_up("draining", started=True)

    # what a run calls

    def fail(self, number: int, code: str, started: bool) -> None:
        """Send the end of a run that has no whole response."""
        self.peer.notify(runtime_pb2.RunFailed(run=number, code=code, message=FAILURE_MESSAGES[code], started=started))

    def forget(self, number: int) -> None:
        """A run is over; what still comes for its number is dropped (R7)."""
        self._open.pop(number, None)
        self._tell_idle()

    # the rest

    def _pass(self, number: int, on: Callable[[Run], object]) -> None:
        """Give a message to its open run; one that has ended takes none, as the Edge may not have known (R7)."""
        if not 0 < number <= self._highest:
            raise UnexpectedMessage("an Edge sent a message for a run that it never opened")
        run = self._open.get(number)
        if run is None:
            return
        try:
            on(run)
        except ProtocolViolation:
            raise
        except Exception:  # noqa: BLE001 - a bug that one run meets must not cost the others their connection
            run.broke()

    def _requested(self, request: runtime_pb2.RunRequest) -> None:
        if request.run <= self._highest:
            raise UnexpectedMessage("an Edge opened a run whose number does not rise")
        if len(self._open) >= IN_FLIGHT_LIMIT:
            raise TooManyInFlight("an Edge opened more runs than a connection may carry")
        if not is_request_id(request.request_id):
            raise MalformedFrame("an Edge opened a run without a request id")
        self._highest = request.run
        machine = NodeRun(request.body_length, request.window)
        try:
            refusal = self._begin(request, machine)
        except Exception:  # noqa: BLE001 - as in _pass
            run = self._open.get(request.run)
            if run is not None:
                run.broke()
                return
            log.failure("node.run.broke", request_id=request.request_id)
            refusal = "internal"
        if refusal is not None:
            self.metrics.runs.count(refusal)
            log.info("node.run.refused", request_id=request.request_id, code=refusal)
            self.fail(request.run, refusal, started=False)

    def _begin(self, request: runtime_pb2.RunRequest, machine: NodeRun) -> str | None:
        """Check everything, then call the upstream; answers the code of a refusal, with nothing begun."""
        if self._idle is not None:
            return "draining"
        provider = self._providers.get(request.provider_id)
        if provider is None:
            return "no_such_provider"
        headers = _upstream_headers(request, provider.profile)
        if headers is None:
            return "not_allowed"
        try:
            grant = self._grants.open(request, provider, self.peer.identity.name)
        except CannotOpen:
            return "lease_refused"
        try:
            credential = credential_header(provider.profile, grant.secret)
        except BadCredential:
            grant.secret.dispose()
            return "lease_refused"
        except Exception:
            grant.secret.dispose()
            raise
        log.info(
            "node.run.started",
            request_id=request.request_id,
            target=provider.target.name,
            provider=provider.provider_id,
            method=request.method,
            path=request.path,
            lease_id=grant.lease_id,
        )
        run = self._open[request.run] = Run(self, request, machine, grant.secret)
        name, value = credential or ("", bytearray())
        with Secret(value):
            if name:
                headers.append((name, value))
            call = provider.target.upstream.call(
                request.method, request.path, headers, request.body_length, run, grant.start_by
            )
        run.start(call)
        return None

    def _tell_idle(self) -> None:
        if self._idle is not None and not self._open and not self._idle.called:
            self._idle.callback(None)


def _upstream_headers(request: runtime_pb2.RunRequest, profile: Profile) -> list[tuple[str, str | bytearray]] | None:
    """The request's headers and the profile's defaults, or None if one of them may not be sent (R8, P17, P18)."""
    sent = {field.name: field.value for field in request.headers}
    if (
        header_fault(sent.items()) is not None
        or len(sent) < len(request.headers)
        or not sent.keys() <= REQUEST_HEADERS
        or profile.header in sent
    ):
        return None
    return [*{**dict(profile.default_headers), **sent}.items(), NODES_OWN]


def _is_encoded(headers: Sequence[tuple[str, str]]) -> bool:
    return any(name == "content-encoding" and value.strip().lower() not in {"", "identity"} for name, value in headers)
