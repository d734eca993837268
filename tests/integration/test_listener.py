"""A listener on a real socket that finds too few descriptors left; its reactor is in memory and turns by hand."""

from __future__ import annotations

import os
import resource
import socket
from typing import Any, cast

from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from iop.net.listener import (
    ACCEPTED_AT_ONCE,
    LOOK_AGAIN_SECONDS,
    SPARE_DESCRIPTORS,
    TELL_AGAIN_SECONDS,
    Listener,
    descriptors_left,
)


class Accepted(Factory):
    """Counts what it is given, and keeps it open."""

    noisy = False

    def __init__(self) -> None:
        self.protocols: list[Protocol] = []

    def buildProtocol(self, addr: object) -> Protocol:
        self.protocols.append(Protocol())
        return self.protocols[-1]


class ListenerTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.soft, self.hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(self.allow, self.soft)
        self.reactor: Any = MemoryReactorClock()
        self.accepted = Accepted()
        self.listener: Any = Listener(0, self.accepted, 50, "127.0.0.1", self.reactor)
        self.listener.startListening()
        self.addCleanup(self.close)
        self.events: list[LogEvent] = []
        observer = cast(ILogObserver, self.events.append)
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)

    def close(self) -> None:
        self.allow(self.soft)
        for protocol in self.accepted.protocols:
            transport: Any = protocol.transport
            transport.abortConnection()
        if self.listener.connected:
            self.listener.stopListening()
        self.reactor.advance(0)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def allow(self, count: int) -> None:
        """Have the system allow descriptors below this number."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, self.hard))

    def leave(self, count: int) -> None:
        """Have the system allow so many more descriptors."""
        lowest = os.dup(0)
        os.close(lowest)
        self.allow(lowest + count)

    def connect(self) -> None:
        """A connection that waits to be accepted."""
        waiting = socket.create_connection(("127.0.0.1", self.listener.getHost().port))
        self.addCleanup(waiting.close)

    def turn(self) -> None:
        """One turn of the reactor: whoever is still registered is told that it can be read."""
        if self.listener in self.reactor.getReaders():
            self.listener.doRead()

    def told(self) -> list[LogEvent]:
        return [event for event in self.events if event.get("log_format") == "net.listen.paused"]

    def test_left(self) -> None:
        """At the limit and one past it; not one more descriptor is open afterwards, whatever the answer."""
        self.leave(11)
        before = os.listdir("/proc/self/fd")
        self.assertTrue(descriptors_left(0, 10))
        self.assertFalse(descriptors_left(0, 11))
        self.leave(0)
        self.assertFalse(descriptors_left(0, 0))
        self.allow(self.soft)
        self.assertEqual(os.listdir("/proc/self/fd"), before)

    def test_pauses_and_goes_on_by_itself(self) -> None:
        """What is not accepted waits, and costs no turn of the reactor; it is accepted once there is room."""
        self.connect()
        self.leave(SPARE_DESCRIPTORS)
        self.turn()
        self.assertEqual(self.reactor.getReaders(), [])
        self.reactor.advance(LOOK_AGAIN_SECONDS)
        self.assertEqual(self.reactor.getReaders(), [self.listener])
        self.turn()
        self.assertEqual((self.reactor.getReaders(), self.accepted.protocols), ([], []))
        self.leave(SPARE_DESCRIPTORS + 2)
        self.reactor.advance(LOOK_AGAIN_SECONDS)
        self.turn()
        self.assertEqual(len(self.accepted.protocols), 1)
        self.assertIn(self.listener, self.reactor.getReaders())

    def test_out_of_descriptors(self) -> None:
        """None at all is left, as when the limit was lowered: neither an error nor a busy loop."""
        self.connect()
        self.allow(3)
        for _ in range(8):
            self.turn()
            self.assertEqual(self.reactor.getReaders(), [])
            self.reactor.advance(LOOK_AGAIN_SECONDS)
        self.allow(self.soft)
        self.turn()
        self.assertEqual(len(self.accepted.protocols), 1)
        self.assertEqual([event for event in self.events if "log_failure" in event], [])

    def test_one_turn_accepts_a_few(self) -> None:
        """P19: however many connections wait, they come one turn at a time."""
        for _ in range(ACCEPTED_AT_ONCE + 2):
            self.connect()
        self.turn()
        self.assertEqual(len(self.accepted.protocols), ACCEPTED_AT_ONCE)
        self.turn()
        self.assertEqual(len(self.accepted.protocols), ACCEPTED_AT_ONCE + 2)

    def test_takes_none_of_the_spare_ones(self) -> None:
        """Not even when low numbers become free one by one, as those of connections that end do, before all of them."""
        ending = [os.dup(0) for _ in range(3)]
        for _ in range(2 * ACCEPTED_AT_ONCE):
            self.connect()
        self.leave(SPARE_DESCRIPTORS + 1)
        self.turn()
        self.assertEqual(len(self.accepted.protocols), 1)
        for count, each in enumerate(ending, 2):
            os.close(each)
            self.reactor.advance(LOOK_AGAIN_SECONDS)
            self.turn()
            self.assertEqual(len(self.accepted.protocols), count)
        spare = [os.dup(0) for _ in range(SPARE_DESCRIPTORS)]
        for each in spare:
            os.close(each)

    def test_says_so_once_a_minute(self) -> None:
        """One event with the limit and what to do, however often it looks."""
        self.connect()
        self.leave(SPARE_DESCRIPTORS)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        for _ in range(int(TELL_AGAIN_SECONDS / LOOK_AGAIN_SECONDS)):
            self.turn()
            self.reactor.advance(LOOK_AGAIN_SECONDS)
        (told,) = self.told()
        self.assertEqual((told["port"], told["descriptors"]), (self.listener.getHost().port, limit))
        self.assertIn("raise the limit", told["hint"])
        self.turn()
        self.assertEqual(len(self.told()), 2)

    def test_closed_while_paused(self) -> None:
        """No timer is left, and it does not come back."""
        self.connect()
        self.leave(SPARE_DESCRIPTORS)
        self.turn()
        self.listener.stopListening()
        self.reactor.advance(0)
        self.reactor.advance(LOOK_AGAIN_SECONDS)
        self.assertEqual(self.reactor.getReaders(), [])
