"""The transport that pairs in tests run on."""

from __future__ import annotations

from twisted.internet.interfaces import IPushProducer, ITransport
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from iop.errors import IdentityRefused
from iop.testing.peers import BUFFER_BYTES, MemoryHandle, MemoryTransport, in_pieces, memory_identity, whole
from iop.units import Identity, Role

NODE = Identity("test.example", Role.NODE, "node")


@implementer(IPushProducer)
class Producer:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def pauseProducing(self) -> None:
        self.told.append("pause")

    def resumeProducing(self) -> None:
        self.told.append("resume")

    def stopProducing(self) -> None:
        self.told.append("stop")


class MemoryTransportTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.transport = MemoryTransport(NODE)

    def test_it_is_a_transport(self) -> None:
        verifyObject(ITransport, self.transport)

    def test_identity(self) -> None:
        """Only a memory transport has the identity a test gave it."""
        self.assertEqual(memory_identity(self.transport), NODE)
        self.assertRaises(IdentityRefused, memory_identity, StringTransport())

    def test_write_and_take(self) -> None:
        self.transport.writeSequence([b"a", b"b"])
        self.transport.held = True
        self.assertEqual(self.transport.take(), b"")
        self.transport.held = False
        self.assertEqual(self.transport.take(), b"ab")
        self.assertEqual(self.transport.take(), b"")

    def test_backpressure_as_twisted_has_it(self) -> None:
        """A producer is paused once above the mark, and resumed once everything has left."""
        producer = Producer()
        self.transport.registerProducer(producer, True)
        self.transport.write(b"x" * BUFFER_BYTES)
        self.assertEqual(producer.told, [])
        self.transport.write(b"x")
        self.transport.write(b"x")
        self.assertEqual(producer.told, ["pause"])
        self.transport.take()
        self.assertEqual(producer.told, ["pause", "resume"])
        self.assertRaises(ValueError, self.transport.registerProducer, producer, False)

    def test_lose_waits_for_bytes_and_producer(self) -> None:
        self.transport.registerProducer(Producer(), True)
        self.transport.write(b"last")
        self.transport.loseConnection()
        self.transport.write(b"too late")
        self.assertFalse(self.transport.finished)
        self.assertEqual(self.transport.take(), b"last")
        self.assertFalse(self.transport.finished)
        self.transport.unregisterProducer()
        self.assertTrue(self.transport.finished)

    def test_abort_drops_bytes(self) -> None:
        self.transport.write(b"lost")
        self.transport.abortConnection()
        self.assertTrue(self.transport.finished)
        self.assertEqual(self.transport.take(), b"")

    def test_keying_material(self) -> None:
        """The same on both ends, another for every label, context and connection."""
        one, other = MemoryHandle(b"1"), MemoryHandle(b"2")
        material = one.export_keying_material(b"label", 32)
        self.assertEqual(len(material), 32)
        self.assertEqual(MemoryHandle(b"1").export_keying_material(b"label", 32), material)
        for different in (
            other.export_keying_material(b"label", 32),
            one.export_keying_material(b"another", 32),
            one.export_keying_material(b"label", 32, b"context"),
        ):
            self.assertNotEqual(different, material)

    def test_splits(self) -> None:
        self.assertEqual(list(whole(b"abc")), [b"abc"])
        self.assertEqual(list(in_pieces(2)(b"abcde")), [b"ab", b"cd", b"e"])
