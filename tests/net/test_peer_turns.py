"""How many frames of one connection are judged before the others' turn."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from iop.core.session import Session
from iop.errors import Draining, PeerDisconnected
from iop.net.peer import TURN_FRAMES
from iop.wire.control_pb2 import AcquireLeaseRequest
from iop.wire.dialect import RUNTIME
from iop.wire.runtime_pb2 import RunBody, RunCredit
from tests.net.test_peer import HELLO, PeerTestCase, frame

#: More than two turns' worth.
BURST = 2 * TURN_FRAMES + 3


class TurnTests(PeerTestCase):
    def break_session(self) -> None:
        """Have every frame from now on meet a bug."""

        def fail(session: Session, payload: bytes) -> None:
            raise ZeroDivisionError

        self.patch(Session, "received", fail)

    def test_a_burst_takes_turns(self) -> None:
        """P19: a turn judges ``TURN_FRAMES``; nothing more is read from the connection before all are judged."""
        pair = self.pair()
        answers = [self.dialling.peer.request(AcquireLeaseRequest(), 5.0) for _ in range(BURST)]
        transport = pair.acceptor_transport
        pair.pump()
        # the hello was the first question
        self.assertEqual(len(self.accepting.questions), 1 + TURN_FRAMES)
        self.assertFalse(transport.reading)
        self.clock.advance(0)
        self.assertEqual(len(self.accepting.questions), 1 + BURST)
        self.assertTrue(transport.reading)
        while not all(answer.called for answer in answers):
            pair.pump()
            self.clock.advance(0)
        for answer in answers:
            self.successResultOf(answer)
        self.assertEqual(self.accepting.reasons + self.dialling.reasons, [])

    def test_what_comes_meanwhile_keeps_its_place(self) -> None:
        """What the transport delivers although it was paused is judged after what waits, once."""
        protocol, _ = self.alone()
        protocol.dataReceived(frame(1, HELLO))
        burst = b"".join(frame(number, AcquireLeaseRequest(request_id=str(number))) for number in range(2, 2 + BURST))
        protocol.dataReceived(burst[:-3])
        protocol.dataReceived(burst[-3:])
        self.assertEqual(len(self.accepting.questions), 1 + TURN_FRAMES)
        self.clock.advance(0)
        ids = [asked.request_id for asked in self.accepting.questions if isinstance(asked, AcquireLeaseRequest)]
        self.assertEqual(ids, [str(number) for number in range(2, 2 + BURST)])

    def test_what_arrived_before_the_end_counts(self) -> None:
        """W11: an answer that arrived before the connection was lost is the answer, not a disconnection."""
        pair = self.pair()
        asked = [self.dialling.peer.request(AcquireLeaseRequest(), 5.0) for _ in range(BURST)]
        pair.acceptor.dataReceived(pair.initiator_transport.take())
        self.clock.advance(0)
        unanswered = self.dialling.peer.request(AcquireLeaseRequest(), 5.0)
        pair.initiator.dataReceived(pair.acceptor_transport.take())
        self.assertFalse(asked[-1].called)
        pair.initiator.connectionLost(Failure(ConnectionDone()))
        for answer in asked:
            self.successResultOf(answer)
        self.failureResultOf(unanswered, PeerDisconnected)
        self.assertIsInstance(self.dialling.reason, PeerDisconnected)

    def test_close_between_turns(self) -> None:
        """Nothing is judged any more, no timer is left, and the transport may read its peer's goodbye."""
        protocol, transport = self.alone()
        protocol.dataReceived(frame(1, HELLO))
        protocol.dataReceived(b"".join(frame(number, AcquireLeaseRequest()) for number in range(2, 2 + BURST)))
        self.assertFalse(transport.reading)
        self.accepting.peer.close(PeerDisconnected("enough"))
        self.assertTrue(transport.reading)
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [])
        self.assertEqual(len(self.accepting.questions), 1 + TURN_FRAMES)

    def test_a_breach_in_a_later_turn(self) -> None:
        """W3: a frame that may not come closes the connection in whichever turn it is judged."""
        protocol, transport = self.alone()
        protocol.dataReceived(frame(1, HELLO))
        burst = [frame(number, AcquireLeaseRequest()) for number in range(2, 2 + BURST)]
        burst[TURN_FRAMES + 1] = frame(2, HELLO)
        protocol.dataReceived(b"".join(burst))
        self.assertEqual(self.accepting.reasons, [])
        self.clock.advance(0)
        self.assertEqual(self.accepting.reason.code, "unexpected_message")
        self.assertTrue(transport.aborted)
        self.assertTrue(transport.reading)
        self.assertEqual(len(self.accepting.questions), 1 + TURN_FRAMES + 1)

    def test_a_fault_in_a_later_turn(self) -> None:
        """A bug ends its connection at once, and is logged; nothing is left to wait until the peer counts as silent."""
        protocol, transport = self.alone()
        protocol.dataReceived(frame(1, HELLO))
        protocol.dataReceived(b"".join(frame(number, AcquireLeaseRequest()) for number in range(2, 2 + BURST)))
        self.break_session()
        self.clock.advance(0)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(self.accepting.reason.code, "internal")
        self.assertTrue(transport.aborted)
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [])

    def test_a_fault_as_the_connection_is_lost(self) -> None:
        """W11: the application hears of the end although what had arrived could not be judged."""
        protocol, _ = self.alone()
        protocol.dataReceived(frame(1, HELLO))
        protocol.dataReceived(b"".join(frame(number, AcquireLeaseRequest()) for number in range(2, 2 + BURST)))
        self.break_session()
        protocol.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(len(self.accepting.reasons), 1)

    def test_drained_in_a_later_turn(self) -> None:
        """The last answer of a draining connection comes in a later turn: it closes, and reads its peer's goodbye."""
        pair = self.pair()
        asked = [self.dialling.peer.request(AcquireLeaseRequest(), 5.0) for _ in range(BURST)]
        self.dialling.peer.drain()
        while not all(answer.called for answer in asked):
            pair.pump()
            self.clock.advance(0)
        self.assertTrue(pair.initiator_transport.reading)
        self.assertIsInstance(self.dialling.reason, Draining)
        self.assertFalse(pair.initiator_transport.aborted)


class NotesTests(PeerTestCase):
    def test_notes_of_runs_keep_their_order(self) -> None:
        """E14: the pieces of a run's body arrive in the order they were sent, across turns."""
        pair = self.pair(RUNTIME)
        for number in range(BURST):
            self.accepting.peer.notify(RunBody(run=1, data=bytes([number])))
            self.accepting.peer.notify(RunCredit(run=2, bytes=number + 1))
        for _ in range(5):
            pair.pump()
            self.clock.advance(0)
        self.assertEqual(
            [note.data for note in self.dialling.notes if isinstance(note, RunBody)],
            [bytes([number]) for number in range(BURST)],
        )
