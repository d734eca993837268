"""Wire messages and values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from google.protobuf.message import Message
from twisted.trial.unittest import SynchronousTestCase

from iop.errors import MalformedFrame
from iop.records import BINDING_FIELDS, Binding, ProjectionDelta, ProjectionSnapshot, RouteEntry, TokenEntry
from iop.units import MODEL_LIMIT, SELECTOR_LIMIT
from iop.wire.control_pb2 import PrincipalProjection, ProjectedRoute, ProjectedToken
from iop.wire.control_pb2 import ProjectionDelta as WireDelta
from iop.wire.convert import (
    COUNT_LIMIT,
    ID_LIMIT,
    binding_from_wire,
    binding_to_wire,
    claim_from_wire,
    delta_from_wire,
    delta_to_wire,
    projection_from_wire,
    projection_to_wire,
    route_from_wire,
    route_to_wire,
    token_from_wire,
    token_to_wire,
)
from iop.wire.runtime_pb2 import Binding as WireBinding

BINDING = Binding("principal", "route", "slot", "openai", "target", "node", 1, 2, 3)
TOKEN = TokenEntry("token", "principal", b"d" * 32, 5)
ROUTE = RouteEntry("route", "principal", "slot", "openai", "target", "Modell ü/1", "gpt", "gpu=yes", 1, 2)
SNAPSHOT = ProjectionSnapshot(7, (TOKEN, replace(TOKEN, token_id="other", expires_ms=0)), (ROUTE,))
DELTA = ProjectionDelta(6, 7, ("gone",), ("gone-too", "gone-as-well"), (TOKEN,), (ROUTE,))

IDS = ("principal", "route", "slot", "token_id")
NAMES = ("profile", "target", "node")
COUNTS = ("credential_revision", "route_revision", "generation")


class RoundTripTests(SynchronousTestCase):
    def test_values_come_back(self) -> None:
        """C17, C39, C40: every field travels."""
        self.assertEqual(binding_from_wire(binding_to_wire(BINDING)), BINDING)
        self.assertEqual(token_from_wire(token_to_wire(TOKEN)), TOKEN)
        self.assertEqual(route_from_wire(route_to_wire(ROUTE)), ROUTE)
        wire = projection_to_wire(SNAPSHOT, b"D" * 32)
        self.assertEqual(projection_from_wire(wire), (SNAPSHOT, b"D" * 32))
        self.assertEqual(claim_from_wire(wire), (SNAPSHOT.generation, b"D" * 32))

    def test_a_delta_comes_back(self) -> None:
        """E11: a change travels with every id and entry of it, and with the digest of what it leads to."""
        wire = delta_to_wire(DELTA, b"D" * 32)
        self.assertEqual((delta_from_wire(wire), claim_from_wire(wire)), (DELTA, (DELTA.generation, b"D" * 32)))

    def test_messages_hold_nothing_else(self) -> None:
        """C15, C17, C40: the messages have exactly the values' fields, so nothing else can travel in them."""
        self.assertEqual({f.name for f in WireBinding.DESCRIPTOR.fields}, set(BINDING_FIELDS))
        self.assertEqual({f.name for f in ProjectedToken.DESCRIPTOR.fields}, {f.name for f in fields(TokenEntry)})
        self.assertEqual({f.name for f in ProjectedRoute.DESCRIPTOR.fields}, {f.name for f in fields(RouteEntry)})
        self.assertEqual(
            {f.name for f in PrincipalProjection.DESCRIPTOR.fields},
            {"generation", "digest", "tokens", "routes", "next_bucket"},
        )
        self.assertEqual(
            {f.name for f in WireDelta.DESCRIPTOR.fields}, {"digest"} | {f.name for f in fields(ProjectionDelta)}
        )


class ShapeTests(SynchronousTestCase):
    """Every field of every message, empty, too long, out of range; all are MalformedFrame."""

    def good_and_bad(self, field: str) -> tuple[list[object], list[object]]:
        if field in IDS:
            return ["x" * ID_LIMIT], ["", "x" * (ID_LIMIT + 1), "a\0b", "a\nb"]
        if field in NAMES:
            return ["n" * 63], ["", "n" * 64, "N", "a/b", "a\n"]
        if field in COUNTS:
            return [1, COUNT_LIMIT], [0, COUNT_LIMIT + 1]
        if field in ("model", "upstream_model"):
            return ["m" * MODEL_LIMIT], ["", "m" * (MODEL_LIMIT + 1), "a\rb"]
        if field == "selector":
            return ["", "s" * SELECTOR_LIMIT], ["s" * (SELECTOR_LIMIT + 1), "a\nb"]
        if field == "digest":
            return [b"\0" * 32], [b"", b"d" * 31, b"d" * 33]
        if field == "expires_ms":
            return [0, COUNT_LIMIT], [-1]
        raise AssertionError(f"no example for {field}")

    def check(self, message: Message, read: Callable[[Any], object]) -> None:
        for field in message.DESCRIPTOR.fields:
            good, bad = self.good_and_bad(field.name)
            for value in good:
                read(self.changed(message, field.name, value))
            for value in bad:
                with self.assertRaises(MalformedFrame, msg=f"{field.name} = {value!r}"):
                    read(self.changed(message, field.name, value))

    def changed(self, message: Message, field: str, value: object) -> Message:
        copy = type(message)()
        copy.CopyFrom(message)
        setattr(copy, field, value)
        return copy

    def test_binding(self) -> None:
        """C17."""
        self.check(binding_to_wire(BINDING), binding_from_wire)

    def test_token(self) -> None:
        """C39."""
        self.check(token_to_wire(TOKEN), token_from_wire)

    def test_route(self) -> None:
        """C40."""
        self.check(route_to_wire(ROUTE), route_from_wire)

    def test_projection(self) -> None:
        """C11: a generation that counts, a digest of 32 bytes, and entries that are well-formed themselves."""
        for snapshot, digest in (
            (replace(SNAPSHOT, generation=0), b"D" * 32),
            (SNAPSHOT, b"D" * 31),
            (replace(SNAPSHOT, tokens=(replace(TOKEN, digest=b""),)), b"D" * 32),
            (replace(SNAPSHOT, routes=(replace(ROUTE, model=""),)), b"D" * 32),
        ):
            with self.assertRaises(MalformedFrame):
                projection_from_wire(projection_to_wire(snapshot, digest))

    def test_delta(self) -> None:
        """E11: generations that count, ids and entries that are well-formed; its digest is part of what it claims."""
        for delta in (
            replace(DELTA, base_generation=0),
            replace(DELTA, generation=0),
            replace(DELTA, removed_tokens=("",)),
            replace(DELTA, removed_routes=("x" * (ID_LIMIT + 1),)),
            replace(DELTA, tokens=(replace(TOKEN, digest=b""),)),
            replace(DELTA, routes=(replace(ROUTE, model=""),)),
        ):
            with self.assertRaises(MalformedFrame):
                delta_from_wire(delta_to_wire(delta, b"D" * 32))
        for generation, digest in ((0, b"D" * 32), (7, b"D" * 31)):
            with self.assertRaises(MalformedFrame):
                claim_from_wire(delta_to_wire(replace(DELTA, generation=generation), digest))
