"""Work that goes on when the caller who asked for it is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from iop.errors import IopError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, TypeVar

    from twisted.python.failure import Failure

    T = TypeVar("T")


def shielded(work: Coroutine[Deferred[Any], Any, T], unheard: Callable[[Failure], object]) -> Deferred[T]:
    """``work``'s result, in a Deferred whose cancellation does not reach ``work``: klein cancels when a caller leaves.

    :param unheard: gets a defect that nobody is there to be told of.
    """
    answer: Deferred[T] = Deferred()

    def failed(failure: Failure) -> None:
        if not answer.called:
            answer.errback(failure)
        elif not isinstance(failure.value, IopError):
            unheard(failure)

    Deferred.fromCoroutine(work).addCallback(
        lambda result: None if answer.called else answer.callback(result)
    ).addErrback(failed)
    return answer
