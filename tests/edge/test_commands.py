"""Commands to an Edge, as its Control Plane gives them."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.message import Message
from twisted.internet.defer import Deferred, fail, succeed
from twisted.trial.unittest import SynchronousTestCase

from iop.core.commands import ENDS, OPERATIONS, REFUSALS, RUNNING_LIMIT
from iop.edge.operations import LOOK_SECONDS
from iop.errors import BadConfig, Draining, FileRefused, IdentityRefused, PeerSilent, StoreBusy
from iop.net.http1 import RequestHead
from iop.wire import control_pb2, runtime_pb2
from tests.edge.rig import (
    ADA,
    ADA_TOKEN,
    FIRST,
    FakeNode,
    MemoryExchange,
    Rig,
    node_table,
    provider,
    text_of,
    wire_of,
)

ACCEPTED = control_pb2.COMMAND_PHASE_ACCEPTED
RUNNING = control_pb2.COMMAND_PHASE_RUNNING
SUCCEEDED = control_pb2.COMMAND_PHASE_SUCCEEDED
FAILED = control_pb2.COMMAND_PHASE_FAILED
CANCELLED = control_pb2.COMMAND_PHASE_CANCELLED
EDGE_DRAINING = control_pb2.LIFECYCLE_EVENT_EDGE_DRAINING
EDGE_RESUMED = control_pb2.LIFECYCLE_EVENT_EDGE_RESUMED
NODE_DRAINING = control_pb2.LIFECYCLE_EVENT_NODE_DRAINING
NODE_RESUMED = control_pb2.LIFECYCLE_EVENT_NODE_RESUMED
NODE_READY = control_pb2.LIFECYCLE_EVENT_NODE_READY
NODE_DISCONNECTED = control_pb2.LIFECYCLE_EVENT_NODE_DISCONNECTED
#: What a command goes through that has one thing to do and does it.
AT_ONCE = [(ACCEPTED, 0, 0, ""), (RUNNING, 0, 1, ""), (SUCCEEDED, 1, 1, "")]


class CommandCase(SynchronousTestCase):
    """An Edge with two Nodes of one provider each, the first of which has two places."""

    def setUp(self) -> None:
        first = node_table("node-1", provider(labels={"tier": "fast"})).model_copy(update={"labels": {"rack": "7"}})
        second = node_table("node-2", provider("openai-spare")).model_copy(update={"labels": {"rack": "8"}})
        self.rig = Rig(Path(self.mktemp()), [first, second])
        self.rig.dial()
        self.ids = 0

    def ask(
        self, operation: str, selector: str = "", *, command_id: str = "", **metadata: str
    ) -> control_pb2.EdgeCommandResponse:
        """Give a command as the Control Plane does; ids are c-1, c-2 and so on."""
        self.ids += 1
        request = control_pb2.EdgeCommandRequest(
            command_id=command_id or f"c-{self.ids}",
            operation=operation,
            target_selector=selector,
            metadata=[control_pb2.CommandMetadata(key=key, value=value) for key, value in metadata.items()],
        )
        answers: list[Message] = []
        self.rig.control_plane.peer.request(request, 5.0).addCallback(answers.append)
        self.rig.pump()
        (answer,) = answers
        assert isinstance(answer, control_pb2.EdgeCommandResponse)
        return answer

    def accepted(self, operation: str, selector: str = "", **metadata: str) -> None:
        answer = self.ask(operation, selector, **metadata)
        self.assertEqual((answer.accepted, answer.code, answer.message), (True, "", ""))
        self.assertEqual((answer.state.command_id, answer.state.operation), (f"c-{self.ids}", operation))
        self.assertEqual((answer.state.phase, answer.state.at_ms), (ACCEPTED, self.rig.clock.wall_ms()))

    def refused(
        self, reason: str, operation: str, selector: str = "", *, command_id: str = "", **metadata: str
    ) -> None:
        answer = self.ask(operation, selector, command_id=command_id, **metadata)
        self.assertEqual((answer.accepted, answer.code, answer.message), (False, reason, REFUSALS[reason]))
        self.assertFalse(answer.HasField("state"))

    def went(self, number: int = 0) -> list[tuple[int, int, int, str]]:
        """Phase, done, total and code of the events of a command, by default the last one."""
        told: list[tuple[int, int, int, str]] = []
        for event in self.rig.control_plane.command_events:
            if event.command_id == f"c-{number or self.ids}":
                self.assertEqual(event.message, ENDS.get(event.code, ""))
                told.append((event.phase, event.done, event.total, event.code))
        return told

    def told(self) -> list[tuple[int, str]]:
        """The lifecycle events after that of this Edge's being ready: event and Node."""
        return [(event.event, event.node_id) for event in self.rig.control_plane.events[1:]]

    def status(self) -> control_pb2.EdgeStatusResponse:
        return self.rig.link.status.page("", 0)

    def busy(self, name: str = "node-1") -> tuple[FakeNode, MemoryExchange]:
        """A ready Node, and a request that it has not answered."""
        node = self.rig.node(name)
        exchange = self.rig.request()
        self.assertEqual(exchange.status, 0)
        return node, exchange

    def finish(self, node: FakeNode) -> None:
        node.head(200)
        node.body(b"{}", last=True)
        self.rig.pump()
        self.rig.advance(LOOK_SECONDS)


class CommandTests(CommandCase):
    """S6, S7, S9, S10: how any command is taken."""

    def test_refusals(self) -> None:
        """S6-S9: each with its code and fixed words; none of it is done or told."""
        self.refused("bad_command_id", "edge.drain", command_id="c 1")
        self.refused("unknown_operation", "node.schedule", "node=node-1")
        self.refused("bad_selector", "node.drain")
        self.refused("bad_selector", "edge.drain", "node=node-1")
        self.refused("nothing_selected", "node.drain", "node=node-3")
        self.refused("unknown_metadata", "edge.resume", deadline_seconds="5")
        self.refused("bad_metadata", "edge.drain", deadline_seconds="0")
        self.rig.advance(1.0)
        self.assertEqual(self.rig.control_plane.command_events, [])
        self.assertFalse(self.rig.door.is_closed)

    def test_repeated(self) -> None:
        """S6: a repeated command is answered with its state and does nothing; another one of its id is refused."""
        self.accepted("edge.drain")
        self.assertEqual([phase for phase, *_ in self.went(1)], [ACCEPTED, RUNNING, SUCCEEDED])
        self.accepted("edge.resume")
        told = len(self.rig.control_plane.command_events)
        again = self.ask("edge.drain", command_id="c-1")
        self.assertEqual((again.accepted, again.state.phase), (True, SUCCEEDED))
        self.assertFalse(self.rig.door.is_closed)
        self.refused("command_conflict", "edge.resume", command_id="c-1")
        self.assertEqual(len(self.rig.control_plane.command_events), told)

    def test_metadata_in_another_sequence(self) -> None:
        """S6, S9: a command whose metadata comes twice over is told apart from none, and refused."""
        request = control_pb2.EdgeCommandRequest(command_id="c", operation="edge.drain")
        for value in ("5", "5"):
            request.metadata.add(key="deadline_seconds", value=value)
        self.assertEqual(self.rig.commands.take(request).code, "bad_metadata")

    def test_answered_before_anything_is_told(self) -> None:
        """S10: the answer says accepted, and nothing was done yet when it leaves."""
        answer = self.rig.commands.take(control_pb2.EdgeCommandRequest(command_id="c", operation="edge.drain"))
        self.assertEqual(answer.state.phase, ACCEPTED)
        self.assertFalse(self.rig.door.is_closed)
        self.rig.pump()
        self.assertTrue(self.rig.door.is_closed)

    def test_how_many_run(self) -> None:
        """S10: sixteen at a time."""
        self.busy()
        for _ in range(RUNNING_LIMIT):
            self.accepted("edge.drain")
        self.refused("too_many_commands", "edge.resume")
        self.rig.advance(300.0)
        self.accepted("edge.resume")

    def test_in_the_order_in_which_they_came(self) -> None:
        """S10: of commands that come together, the later one finds what the earlier one did."""
        for number, operation in enumerate(("edge.drain", "edge.resume", "edge.drain")):
            self.rig.commands.take(control_pb2.EdgeCommandRequest(command_id=f"c-{number}", operation=operation))
        self.rig.pump()
        self.assertEqual(self.told(), [(EDGE_DRAINING, ""), (EDGE_RESUMED, ""), (EDGE_DRAINING, "")])
        self.assertTrue(self.rig.door.is_closed)

    def test_not_before_the_hello(self) -> None:
        """S1, S6: a Control Plane that has not accepted this Edge commands nothing."""
        self.rig = Rig(Path(self.mktemp()))
        self.rig.control_plane.hello_answer.accepted = False
        self.rig.dial()
        self.assertIsNotNone(self.rig.control_plane.lost_for)

    def test_goes_on_without_a_connection(self) -> None:
        """S10, C34: a command goes on when its connection ends, and the next one can be asked how it stands."""
        node, _ = self.busy()
        self.accepted("edge.drain")
        assert self.rig.control_pair is not None
        self.rig.control_pair.cut()
        self.finish(node)
        self.rig.dial()
        self.assertEqual(self.ask("edge.drain", command_id="c-1").state.phase, SUCCEEDED)

    def test_stopping(self) -> None:
        """S10: what has not ended when the process goes away is cancelled, and says so."""
        node, _ = self.busy()
        self.accepted("edge.drain")
        late = self.rig.commands.take(control_pb2.EdgeCommandRequest(command_id="late", operation="edge.resume"))
        self.rig.commands.stop()
        self.finish(node)
        self.assertEqual(late.state.phase, ACCEPTED)
        self.assertEqual(self.went(1)[-1], (CANCELLED, 0, 1, "stopping"))
        self.assertEqual(self.rig.control_plane.command_events[-1].phase, CANCELLED)
        self.assertTrue(self.rig.door.is_closed)

    def test_bug(self) -> None:
        """S10: a fault of this Edge's own ends the command with a code, and the log has the rest."""
        self.patch(self.rig.pool, "disable", lambda *_: 1 / 0)
        self.accepted("provider.disable", "provider=openai-main")
        self.assertEqual(self.went()[-1], (FAILED, 0, 1, "internal"))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_every_operation_is_there(self) -> None:
        """S7: each operation of the table is done by this Edge, and ends."""
        projection = wire_of(FIRST)
        self.rig.control_plane.page.callback(
            control_pb2.ProjectionPageResponse(kept=True, tokens=projection.tokens, routes=projection.routes)
        )
        for operation, takes in OPERATIONS.items():
            self.accepted(operation, "" if takes.chooses.name == "NOTHING" else "node=node-1")
            self.assertEqual(self.went()[-1][0], SUCCEEDED, operation)


class EdgeTests(CommandCase):
    """S11: an Edge that is drained."""

    def test_nothing_to_wait_for(self) -> None:
        """S10: such a drain succeeds at once."""
        self.accepted("edge.drain")
        self.assertEqual(self.went(), [(ACCEPTED, 0, 0, ""), (RUNNING, 0, 0, ""), (SUCCEEDED, 0, 0, "")])
        self.assertTrue(self.status().draining)

    def test_drain(self) -> None:
        """S11: new requests are refused and those it has go on; progress counts those, to the last."""
        node, first = self.busy()
        other, second = self.rig.node("node-2"), self.rig.request()
        self.accepted("edge.drain")
        late = self.rig.request()
        self.assertEqual((late.status, late.headers["retry-after"]), (503, "5"))
        self.assertIn(b'"edge_draining"', late.body)
        self.assertEqual(self.went(), [(ACCEPTED, 0, 0, ""), (RUNNING, 0, 2, "")])
        for each in (node, other):
            self.finish(each)
        self.assertEqual([first.status, second.status], [200, 200])
        self.assertEqual(self.went()[2:], [(RUNNING, 1, 2, ""), (SUCCEEDED, 2, 2, "")])
        self.assertEqual(self.rig.request(method="GET", path="/v1/models").status, 200)

    def test_strangers_learn_nothing(self) -> None:
        """P20: whoever has no token hears that, drained or not."""
        self.accepted("edge.drain")
        self.assertEqual(self.rig.request(token="").status, 401)

    def test_body_on_its_way(self) -> None:
        """S11: a request that is not whole when the Edge is drained is a new one."""
        authorization = (b"authorization", b"Bearer " + text_of(ADA_TOKEN).encode())
        exchange = MemoryExchange(RequestHead("POST", "/v1/chat/completions", "", (authorization,)))
        wanted = self.rig.api.headed(exchange)
        assert wanted is not None
        self.accepted("edge.drain")
        self.assertEqual(self.went()[-1][0], SUCCEEDED)
        wanted.take(bytearray(b'{"model": "small"}'))
        self.assertEqual(exchange.status, 503)
        self.assertEqual(self.rig.door.inside, 0)

    def test_every_request_leaves(self) -> None:
        """S11: a request is over when it was answered, refused or left."""
        self.rig.node("node-1")
        for path in ("answered", "left", "no model"):
            exchange = self.rig.request(b'{"model": "none"}' if path == "no model" else b'{"model": "small"}')
            if path == "left":
                exchange.go()
            self.rig.pump()
        self.assertEqual(self.rig.door.inside, 1)
        self.rig.advance(30.0)

    def test_deadline(self) -> None:
        """S10: a drain that is over its deadline fails, and what it drained stays so; by default after 300 s."""
        self.busy()
        self.accepted("edge.drain", deadline_seconds="5")
        self.accepted("edge.drain")
        self.rig.advance(4.9)
        self.assertEqual(len(self.went(1)), 2)
        self.rig.advance(0.2)
        self.assertEqual(self.went(1)[-1], (FAILED, 0, 1, "deadline"))
        self.assertTrue(self.status().draining)
        self.rig.advance(294.0)
        self.assertEqual(self.went(2)[-1][0], RUNNING)
        self.rig.advance(1.0)
        self.assertEqual(self.went(2)[-1], (FAILED, 0, 1, "deadline"))

    def test_resume(self) -> None:
        """S10, S11: it serves again, and the drains that run are cancelled."""
        self.busy()
        self.accepted("edge.drain")
        self.accepted("edge.drain")
        self.accepted("edge.resume")
        self.assertEqual(self.went(3), AT_ONCE)
        for number in (1, 2):
            self.assertEqual(self.went(number)[-1], (CANCELLED, 0, 1, "resumed"))
        self.assertFalse(self.status().draining)
        self.assertEqual(self.rig.request().status, 0)
        self.assertEqual(self.told(), [(NODE_READY, "node-1"), (EDGE_DRAINING, ""), (EDGE_RESUMED, "")])
        self.accepted("edge.resume")
        self.assertEqual(self.went(), AT_ONCE)
        self.assertEqual(len(self.told()), 3)

    def test_outlasts_connections(self) -> None:
        """S11: a drained Edge is so after its Control Plane came again."""
        self.accepted("edge.drain")
        assert self.rig.control_pair is not None
        self.rig.control_pair.cut()
        self.rig.dial()
        self.assertEqual(self.rig.request().status, 503)


class NodeTests(CommandCase):
    """S8, S11: commands about Nodes."""

    def connected(self) -> list[str]:
        return [node.node_id for node in self.status().nodes if node.connected]

    def test_drain_and_resume(self) -> None:
        """S2, S11: a drained Node goes on with what it has, gets nothing new, and is not connected meanwhile."""
        node, exchange = self.busy()
        self.accepted("node.drain", "node=node-1")
        self.assertEqual(self.connected(), [])
        late = self.rig.request()
        self.assertEqual(len([each for each in node.received if isinstance(each, runtime_pb2.RunRequest)]), 1)
        self.assertEqual(self.went(), [(ACCEPTED, 0, 0, ""), (RUNNING, 0, 1, "")])
        self.finish(node)
        self.assertEqual((exchange.status, late.status), (200, 0))
        self.assertEqual(self.went()[2:], [(SUCCEEDED, 1, 1, "")])
        self.accepted("node.resume", "node=node-1")
        self.assertEqual(self.connected(), ["node-1"])
        self.finish(node)
        self.assertEqual(late.status, 200)
        self.assertEqual(self.told(), [(NODE_READY, "node-1"), (NODE_DRAINING, "node-1"), (NODE_RESUMED, "node-1")])

    def test_drained_while_away(self) -> None:
        """S11: the state outlasts connections of the Node, and is told once."""
        self.accepted("node.drain", "node=node-1")
        self.accepted("node.drain", "node=node-1")
        self.rig.node("node-1")
        self.assertEqual(self.connected(), [])
        self.assertEqual(self.told(), [(NODE_DRAINING, "node-1"), (NODE_READY, "node-1")])

    def test_resume_of_one_of_several(self) -> None:
        """S10: a drain one of whose Nodes is resumed is cancelled; the others stay drained. Other drains go on."""
        self.busy()
        self.rig.node("node-2")
        self.accepted("node.drain", "rack=7")
        self.rig.request()
        self.accepted("node.drain", "node=node-2")
        self.accepted("edge.drain")
        self.accepted("node.resume", "node=node-1")
        self.assertEqual(self.went(1)[-1], (CANCELLED, 0, 1, "resumed"))
        self.assertEqual(self.went(2)[-1][0], RUNNING)
        self.assertEqual(self.went(3)[-1][0], RUNNING)
        self.assertEqual(self.connected(), ["node-1"])

    def test_selectors(self) -> None:
        """S8, C36: the Node's name and labels, all of which must match; a provider's labels are not the Node's."""
        for selector, chosen in (("rack=7", ["node-1"]), ("rack=8,node=node-2", ["node-2"])):
            self.accepted("node.drain", selector)
            self.assertEqual([name for name in ("node-1", "node-2") if self.rig.pool.is_held(name)], chosen)
            self.accepted("node.resume", selector)
        for selector in ("rack=7,node=node-2", "tier=fast", "provider=openai-main", "address=192.0.2.1"):
            self.refused("nothing_selected", "node.drain", selector)

    def test_disconnect(self) -> None:
        """S7: the connection is gone when that is told, whether its Node was ready or not; it may come again."""
        node, exchange = self.busy()
        registering = FakeNode(self.rig.clock, "node-2")
        registering.registers = False
        self.rig.connect(registering)
        registering.ask(registering.hello())
        self.rig.pump()
        for name in ("node-1", "node-2"):
            self.accepted("node.disconnect", f"node={name}")
            self.assertEqual(self.went(), AT_ONCE)
        self.assertIsNotNone(node.lost_for)
        self.assertIsNotNone(registering.lost_for)
        self.assertEqual(exchange.status, 502)
        self.assertEqual(self.told(), [(NODE_READY, "node-1"), (NODE_DISCONNECTED, "node-1")])
        self.assertEqual(self.rig.control_plane.events[-1].code, "disconnected")
        for name in ("node-1", "node-2"):
            self.rig.node(name)
        self.assertEqual(self.connected(), ["node-1", "node-2"])

    def test_disconnect_who_is_not_there(self) -> None:
        """S7: there is nothing to end, and so it is done."""
        self.accepted("node.disconnect", "rack=7")
        self.assertEqual(self.went(), AT_ONCE)


class ProviderTests(CommandCase):
    """S8, S11: commands about providers."""

    def test_disable_and_enable(self) -> None:
        """S11: a provider that is disabled is unavailable and gets no new run, also after its Node came again."""
        node, exchange = self.busy()
        self.accepted("provider.disable", "node=node-1,provider=openai-main,tier=fast")
        self.assertEqual(self.went(), AT_ONCE)
        self.assertEqual(self.rig.request().status, 503)
        snapshot = self.status().nodes[0].provider_snapshots[0]
        self.assertEqual(snapshot.status, runtime_pb2.PROVIDER_STATUS_UNAVAILABLE)
        self.assertEqual((snapshot.capacity, snapshot.in_flight), (0, 1))
        self.finish(node)
        self.assertEqual(exchange.status, 200)
        self.accepted("node.disconnect", "node=node-1")
        self.rig.node("node-1")
        self.assertEqual(self.rig.request().status, 503)
        self.accepted("provider.enable", "node=node-1")
        self.assertEqual(self.rig.request().status, 0)

    def test_selectors(self) -> None:
        """S8, C36: the Node's name, the provider's id and its labels; the Node's labels are not the provider's."""
        both = [("node-1", "openai-main"), ("node-2", "openai-spare")]
        for selector, chosen in (
            ("provider=openai-main", both[:1]),
            ("node=node-2", both[1:]),
            ("tier=fast", both[:1]),
        ):
            self.accepted("provider.disable", selector)
            self.assertEqual([names for names in both if self.rig.pool.is_disabled(*names)], chosen)
            self.accepted("provider.enable", selector)
        for selector in ("rack=7", "node=node-2,provider=openai-main"):
            self.refused("nothing_selected", "provider.disable", selector)


class OtherTests(CommandCase):
    """S7: leases, projection, files."""

    def test_flush(self) -> None:
        """S7, L10: all leases are forgotten, and counted."""
        self.busy()
        self.assertEqual(len(self.rig.leases), 1)
        self.accepted("leases.flush")
        self.assertEqual((self.went(), len(self.rig.leases)), (AT_ONCE, 0))
        self.rig.request()
        self.assertEqual(len(self.rig.control_plane.asked_for), 2)

    def test_resync(self) -> None:
        """S7, E12: the projection in force is asked for again, whole."""
        self.accepted("projection.resync")
        self.assertEqual(self.went()[-1], (RUNNING, 0, 1, ""))
        projection = wire_of(FIRST)
        page = control_pb2.ProjectionPageResponse(kept=True, tokens=projection.tokens, routes=projection.routes)
        self.rig.control_plane.page.callback(page)
        self.rig.pump()
        self.assertEqual(self.went(), AT_ONCE)

    def test_resync_of_another_one(self) -> None:
        """S7, E5: what is not the projection that was acknowledged is not taken, and the command says so."""
        self.accepted("projection.resync")
        projection = wire_of(FIRST)
        self.rig.control_plane.page.callback(control_pb2.ProjectionPageResponse(kept=True, tokens=projection.tokens))
        self.rig.pump()
        self.assertEqual(self.went()[-1], (FAILED, 0, 1, "projection_refused"))

    def test_resync_cut(self) -> None:
        """S7: without a connection there is nothing to be had from it; the next one can be asked how it went."""
        self.accepted("projection.resync")
        assert self.rig.control_pair is not None
        self.rig.control_pair.cut()
        self.rig.dial()
        state = self.ask("projection.resync", command_id="c-1").state
        self.assertEqual((state.phase, state.code), (FAILED, "not_connected"))

    def test_reload(self) -> None:
        """S7: what SIGHUP does, with its outcome as a code and never in its words."""
        for outcome, code in (
            (None, ""),
            (BadConfig("/etc/iop/edge.pem"), "bad_config"),
            (FileRefused("/etc/iop/edge.key"), "file_refused"),
            (Draining("going away"), "stopping"),
            (StoreBusy("/etc/iop/edge.key"), "internal"),
            (IdentityRefused("spiffe://"), "internal"),
            (OSError("/etc/iop"), "internal"),
        ):
            self.rig.reload = succeed(None) if outcome is None else fail(outcome)
            self.accepted("config.reload")
            expected = (FAILED, 0, 1, code) if code else (SUCCEEDED, 1, 1, "")
            self.assertEqual(self.went()[-1], expected)
            self.flushLoggedErrors()
        self.assertEqual(self.rig.reloads, 7)

    def test_reload_during_the_start(self) -> None:
        """S7: it is done when the start is over."""
        self.rig.reload = Deferred()
        self.accepted("config.reload")
        self.assertEqual(self.went()[-1][0], RUNNING)
        self.rig.reload.callback(None)
        self.rig.pump()
        self.assertEqual(self.went(), AT_ONCE)


class SecrecyTests(CommandCase):
    """C46, C37: what can be heard of an Edge."""

    def test_no_address_and_no_token(self) -> None:
        """C46, P25: nothing of addresses, tokens or connections is in a status, an answer or an event, byte by byte."""
        heard: list[bytes] = []
        token, address = text_of(ADA_TOKEN), "10.20.30.40"
        node, _ = self.busy()
        self.rig.request()
        run = node.last_run()
        for metadata in ({}, {token: "x"}, {"deadline_seconds": token}, {"url": f"https://{address}"}):
            for operation in (*OPERATIONS, token, f"https://{address}:7446"):
                for selector in ("", "node=node-1", f"node={address}", f"k={token}", f"https://{address}"):
                    answer = self.rig.commands.take(
                        control_pb2.EdgeCommandRequest(
                            command_id=f"s-{len(heard)}",
                            operation=operation,
                            target_selector=selector,
                            metadata=[control_pb2.CommandMetadata(key=key, value=metadata[key]) for key in metadata],
                        )
                    )
                    self.rig.advance(LOOK_SECONDS)
                    heard.append(answer.SerializeToString())
        for bad_id in (token + "!", f"{address}:7446"):
            heard.append(
                self.rig.commands.take(
                    control_pb2.EdgeCommandRequest(command_id=bad_id, operation="edge.drain")
                ).SerializeToString()
            )
        for error in (BadConfig(address), FileRefused(token), OSError(address)):
            self.rig.reload = fail(error)
            self.accepted("config.reload")
        self.rig.node("node-1").peer.close(PeerSilent(f"{address} is silent"))
        self.rig.nodes.dismiss("node-1")
        self.rig.node("node-1")
        self.rig.advance(301.0)
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 1)
        plane = self.rig.control_plane
        heard += [event.SerializeToString() for event in (*plane.events, *plane.command_events)]
        heard.append(self.status().SerializeToString())
        self.assertGreater(len(plane.command_events), 30)
        offer = node.offer()
        for secret in (
            *(token.encode(), ADA.digest, address.encode(), b"192.0.2.", b"://", b"/etc"),
            *(offer.public_key, offer.attestation.statement, offer.attestation.signature),
            *(run.lease.box, run.lease.statement, run.token_id.encode(), run.binding.slot.encode()),
        ):
            self.assertTrue(secret)
            for data in heard:
                self.assertNotIn(secret, data)
