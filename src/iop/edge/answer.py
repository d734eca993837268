"""One answer from a Node on its way to a caller: streamed as it comes, at the caller's pace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from iop.edge.metrics import CALLER_GONE, EdgeMetrics
from iop.edge.openai_errors import INTERNAL, Refusal, provider_refused_credential, refusal_of, refusal_of_run
from iop.edge.runs import IRunReceiver
from iop.errors import IopError

if TYPE_CHECKING:
    from iop.edge.attempts import Dispatched
    from iop.edge.runs import RunFailure
    from iop.interfaces import IClock
    from iop.net.http1 import IExchange

#: Response headers that travel to the caller; everything else stays here.
_PASSED_ON: Final = frozenset(
    {
        "cache-control",
        "content-encoding",
        "content-type",
        "openai-model",
        "openai-processing-ms",
        "openai-version",
        "retry-after",
        "x-ratelimit-limit-requests",
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-requests",
        "x-ratelimit-reset-tokens",
    }
)
#: The upstream's word on the credential, which is not the caller's.
_CREDENTIAL_REFUSED: Final = frozenset({401, 403})

_log = Logger()


@implementer(IRunReceiver)
class Answer:
    """Takes a run's response to a caller.

    Credit goes back to the Node for bytes that the caller's connection took; while it is full the bytes are owed, so a
    slow caller slows the upstream (R4).

    :param ended: called once, when the answer is whole or will never be.
    """

    def __init__(
        self,
        exchange: IExchange,
        request_id: str,
        model: str,
        clock: IClock,
        metrics: EdgeMetrics,
        ended: Callable[[], object],
    ) -> None:
        self._exchange = exchange
        self._request_id = request_id
        self._model = model
        self._clock = clock
        self._metrics = metrics
        self._ended = ended
        self._began = clock.boot()
        self._dispatching: Deferred[Dispatched] | None = None
        self._dispatched: Dispatched | None = None
        self._status = 0
        self._bytes = 0
        self._paused = False
        self._owed = 0
        self._over = False
        exchange.on_gone(self._gone)
        exchange.on_writable(self._pause, self._resume)

    def take(self, dispatching: Deferred[Dispatched]) -> None:
        """Follow a dispatched call to its end; a caller who has left already needs none."""
        self._dispatching = dispatching
        dispatching.addCallbacks(self._begin, self._refused)
        if self._over:
            self._cancel()

    # -- IRunReceiver -------------------------------------------------------------------------------------------------

    def head(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        """Pass status and headers on; a refused credential is said in our words."""
        self._metrics.first_byte_seconds.observe(self._clock.boot() - self._began)
        if status in _CREDENTIAL_REFUSED:
            self._cancel()
            self._refuse(provider_refused_credential(status))
            return
        passed = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers if name in _PASSED_ON]
        self._exchange.start(status, [*passed, (b"x-request-id", self._request_id.encode())])
        self._status = status

    def data(self, data: bytes) -> None:
        """Pass bytes on."""
        self._bytes += len(data)
        self._metrics.answer_bytes.inc(len(data))
        self._exchange.write(data)
        self._owed += len(data)
        if not self._paused:
            self._settle()

    def finished(self) -> None:
        """The whole answer was passed on."""
        self._exchange.finish()
        self._end("")

    def failed(self, failure: RunFailure) -> None:
        """The answer broke off after its head: the caller must see that it is not whole."""
        if self._over:
            return
        if self._status:
            self._exchange.abort()
            self._end(failure.code)
        else:
            self._refuse(refusal_of_run(failure))

    # -- the caller's connection --------------------------------------------------------------------------------------

    def _gone(self) -> None:
        self._end(CALLER_GONE)
        self._cancel()

    def _pause(self) -> None:
        self._paused = True

    def _resume(self) -> None:
        self._paused = False
        self._settle()

    # -- the rest -----------------------------------------------------------------------------------------------------

    def _begin(self, dispatched: Dispatched) -> None:
        self._dispatched = dispatched

    def _refused(self, failure: Failure) -> None:
        if self._over:
            return
        refusal = refusal_of(failure.value) if isinstance(failure.value, IopError) else INTERNAL
        if refusal is INTERNAL:
            _log.failure("edge.request.broke", failure, request_id=self._request_id)
        self._refuse(refusal)

    def _refuse(self, refusal: Refusal) -> None:
        self._status = refusal.status
        self._exchange.respond(refusal.status, refusal.headers(self._request_id), refusal.body())
        self._end(refusal.code)

    def _settle(self) -> None:
        owed, self._owed = self._owed, 0
        if owed and self._dispatched is not None:
            self._dispatched.run.consumed(owed)

    def _cancel(self) -> None:
        if self._dispatched is not None:
            self._dispatched.run.cancel()
        elif self._dispatching is not None:
            self._dispatching.cancel()

    def _end(self, code: str) -> None:
        if self._over:
            return
        self._over = True
        seconds = self._clock.boot() - self._began
        self._metrics.finished(self._status, code)
        self._metrics.call_seconds.observe(seconds)
        _log.info(
            "edge.request.finished",
            request_id=self._request_id,
            model=self._model,
            node=self._dispatched.node if self._dispatched else "",
            generation=self._dispatched.generation if self._dispatched else 0,
            status=self._status,
            code=code,
            bytes=self._bytes,
            seconds=round(seconds, 3),
        )
        self._ended()
