"""One SQLite connection on a thread of its own, with a bounded queue and group commit.

Everything that waits when the thread is free is done in one transaction, each job in a savepoint of its own: one fsync
for all of them, and a job that fails takes back only itself. No result is told before COMMIT returned.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, Final, TypeVar

from twisted.internet.defer import Deferred, fail, succeed

from iop.errors import StoreBusy, StoreUnavailable
from iop.store.failures import as_store_error, outcome_of_commit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted.internet.interfaces import IReactorFromThreads

T = TypeVar("T")
_Job = Callable[[sqlite3.Connection], Any]
_Asked = tuple[Deferred[Any], _Job]
_Word = Callable[[], None]

#: Jobs that may wait; with one batch of as many they take about a tenth of a second.
QUEUE_LIMIT: Final = 4096


class SqliteThread:
    """Runs jobs on a connection, in the order they were given.

    :param connection: in autocommit mode and usable from another thread; the thread closes it.
    :param begin: the statement that opens a transaction: ``BEGIN`` to read, ``BEGIN IMMEDIATE`` to write.
    :param reactor: where results are told.
    :param name: of the thread.
    :param limit: jobs that may wait.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        begin: str,
        reactor: IReactorFromThreads,
        name: str,
        limit: int = QUEUE_LIMIT,
    ) -> None:
        self._connection = connection
        self._begin = begin
        self._reactor = reactor
        self._limit = limit
        self._changed = Condition()
        self._waiting: list[_Asked] = []
        self._closing = False
        self._ended = False
        self._awaiting_end: list[Deferred[None]] = []
        # a process that ends without closing must not wait for us: what was acknowledged is on disk
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, job: Callable[[sqlite3.Connection], T]) -> Deferred[T]:
        """Run ``job`` in a transaction; the Deferred fires after its COMMIT, on the reactor.

        ``job`` must read every cursor to its end. It fails with what the job raised, with
        :class:`~iop.errors.StoreBusy` if too many wait or another process holds the lock too long, and with
        :class:`~iop.errors.StoreUnavailable` if the database cannot be used or the thread was closed.
        """
        done: Deferred[T] = Deferred()
        with self._changed:
            if self._closing:
                return fail(StoreUnavailable("the store is closed; nothing was changed"))
            if len(self._waiting) >= self._limit:
                return fail(StoreBusy("too much waits for the store; nothing was changed"))
            self._waiting.append((done, job))
            self._changed.notify()
        return done

    def close(self) -> Deferred[None]:
        """Do what was accepted, refuse what comes after, end the thread. Fires when it ended."""
        if self._ended:
            return succeed(None)
        with self._changed:
            self._closing = True
            self._changed.notify()
        done: Deferred[None] = Deferred()
        self._awaiting_end.append(done)
        return done

    # -- on the thread ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while waiting := self._next_batch():
            self._reactor.callFromThread(_tell, self._transaction(waiting))
        self._connection.close()
        self._reactor.callFromThread(self._end)

    def _next_batch(self) -> list[_Asked]:
        """Everything that waits; empty only when nothing ever will."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            waiting, self._waiting = self._waiting, []
        return waiting

    def _transaction(self, waiting: Sequence[_Asked]) -> list[_Word]:
        """Run the jobs and commit; answers each one's word to its caller."""
        committing = False
        try:
            self._connection.execute(self._begin)
            words = [self._attempt(done, job) for done, job in waiting]
            committing = True
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            outcome = outcome_of_commit(error) if committing else "nothing was changed"
            with suppress(sqlite3.Error):
                # there may be no transaction to take back, which is as good
                self._connection.execute("ROLLBACK")
            return [partial(done.errback, as_store_error(error, outcome)) for done, _ in waiting]
        return words

    def _attempt(self, done: Deferred[Any], job: _Job) -> _Word:
        self._connection.execute("SAVEPOINT job")
        try:
            result = job(self._connection)
        except Exception as error:  # whatever it is, it is the caller's
            if isinstance(error, sqlite3.Error):
                if not self._connection.in_transaction:
                    # SQLite took back the whole transaction (a full disk can do that), and the other jobs with it
                    raise
                error = as_store_error(error, "nothing was changed")
            self._connection.execute("ROLLBACK TO job")
            self._connection.execute("RELEASE job")
            return partial(done.errback, error)
        self._connection.execute("RELEASE job")
        return partial(done.callback, result)

    # -- on the reactor again -----------------------------------------------------------------------------------------

    def _end(self) -> None:
        self._thread.join()
        self._ended = True
        awaiting, self._awaiting_end = self._awaiting_end, []
        for done in awaiting:
            done.callback(None)


def _tell(words: Sequence[_Word]) -> None:
    for word in words:
        word()
