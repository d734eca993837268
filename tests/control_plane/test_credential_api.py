"""The credential HTTPS API over its real resource, without a network."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

from treq.testing import StubTreq
from twisted.internet.defer import Deferred
from twisted.web.iweb import IResponse
from twisted.web.server import Request

from iop.crypto.tokens import mint
from iop.errors import AlreadyExists
from iop.records import Committed, NewSlot, SlotRecord, TokenKind
from tests.control_plane.world import CANARY, WorldCase, result_of

URL = "https://control.test"


class ApiCase(WorldCase):
    def setUp(self) -> None:
        super().setUp()
        self.treq: Any = StubTreq(self.world.plane.api.resource())
        self.manage = self.world.token_text("ann", TokenKind.MANAGE)

    def call(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        headers: dict[str, Any] | None = None,
        body: bytes = b"",
    ) -> tuple[IResponse, Any]:
        """One call; its answer and the JSON in it."""
        sent = {"Authorization": f"Bearer {self.manage if token is None else token}"} | (headers or {})
        response = result_of(self.treq.request(method, URL + path, headers=sent, data=body))
        text = result_of(self.treq.content(response))
        self.assertNotIn(CANARY, text)
        return response, json.loads(text)

    def refused(self, status: int, code: str, *arguments: Any, **keywords: Any) -> Any:
        """A call that ends in this problem document (RFC 9457)."""
        response, document = self.call(*arguments, **keywords)
        self.assertEqual((response.code, document["code"]), (status, code))
        self.assertEqual(document["status"], status)
        self.assertEqual(response.headers.getRawHeaders(b"content-type"), [b"application/problem+json"])
        return document

    def create(self, query: str = "?name=second&profile=openai&target=lab", **keywords: Any) -> tuple[IResponse, Any]:
        headers = {"Content-Type": "application/octet-stream"} | keywords.pop("headers", {})
        return self.call("POST", f"/v1/slots{query}", headers=headers, body=keywords.pop("body", CANARY), **keywords)


class AuthenticationTests(ApiCase):
    def test_whoami(self) -> None:
        """Who the token speaks for."""
        response, document = self.call("GET", "/v1/whoami")
        self.assertEqual(response.code, 200)
        token = self.world.tokens["ann", TokenKind.MANAGE].record
        self.assertEqual(
            document,
            {
                "principal": self.ann,
                "token": {"id": token.token_id, "kind": "manage"},
                "generation": self.generation(),
            },
        )

    def test_every_call_needs_a_token(self) -> None:
        """K10, P1, P20: none, another scheme, empty, doubled, a digest, a typing error, somebody's invention."""
        token = self.world.tokens["ann", TokenKind.MANAGE]
        text = self.manage
        mistyped = text[:-1] + ("x" if text[-1] != "x" else "y")
        wrong: list[list[str]] = [[], ["Basic dXNlcjpwYXNz"], ["Bearer"], ["Bearer "], [text], [f"Bearer {text}"] * 2]
        wrong += [[f"Bearer {token.record.digest.hex()}"], [f"Bearer {mistyped}"], ["Bearer " + "a" * 4000]]
        wrong += [[f"Bearer {bytes(mint(TokenKind.MANAGE).text.reveal()).decode()}"], [f"Bearer  {text}"]]
        for method, path in (
            ("GET", "/v1/whoami"),
            ("GET", "/v1/slots"),
            ("POST", "/v1/slots"),
            ("PUT", "/v1/routes/m"),
        ):
            for values in wrong:
                response = result_of(
                    self.treq.request(method, URL + path, headers={"Authorization": values} if values else {})
                )
                document = json.loads(result_of(self.treq.content(response)))
                self.assertEqual(response.code, 401, values)
                self.assertIn(document["code"], ("token_required", "token_refused"))
                self.assertTrue(response.headers.hasHeader(b"www-authenticate"))

    def test_a_token_ends(self) -> None:
        """K10: until just before it expires, and told then as one that nobody has."""
        token = mint(TokenKind.MANAGE, expires_ms=self.world.clock.wall_ms() + 1000)
        result_of(self.world.store.principals.create("carol", [token.record], "host:test"))
        text = bytes(token.text.reveal()).decode()
        self.world.clock.advance(0.999)
        self.assertEqual(self.call("GET", "/v1/whoami", token=text)[0].code, 200)
        self.world.clock.advance(0.001)
        self.refused(401, "token_refused", "GET", "/v1/whoami", token=text)

    def test_a_use_token_manages_nothing(self) -> None:
        """P20: an Edge sees ``use`` tokens, so they open nothing here; the refusal is audited."""
        self.refused(403, "wrong_token_kind", "GET", "/v1/slots", token=self.world.token_text("ann", TokenKind.USE))
        self.assertEqual(result_of(self.world.store.audit.tail(1))[0].outcome, "wrong_token_kind")

    def test_nothing_else_is_there(self) -> None:
        """K3, K8: no bootstrap, no principal, no token route; nothing at the root."""
        for path in ("/", "/v1", "/v1/principals", "/v1/tokens", "/v1/bootstrap", "/v1/slots/x/y", "//v1/slots"):
            for method in ("GET", "POST", "PUT", "DELETE"):
                response = result_of(
                    self.treq.request(method, URL + path, headers={"Authorization": f"Bearer {self.manage}"})
                )
                self.assertIn(response.code, (404, 405), (method, path))


class SlotTests(ApiCase):
    def test_create_and_list(self) -> None:
        """K11, K12: a secret goes in once as octets; what comes back, ever, is metadata."""
        response, made = self.create()
        self.assertEqual(response.code, 201)
        self.assertEqual(
            (made["name"], made["profile"], made["target"], made["state"]), ("second", "openai", "lab", "active")
        )
        self.assertEqual((made["revision"], made["credential_revision"]), (1, 1))
        self.assertEqual(made["generation"], self.generation())
        self.assertEqual(made["edges"], {"acknowledged": 0, "cut_off": 0, "unconfirmed": 0})
        self.assertRegex(made["effective_by"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        self.assertEqual(response.headers.getRawHeaders(b"etag"), [b'"1"'])
        _, listed = self.call("GET", "/v1/slots")
        self.assertEqual([slot["name"] for slot in listed["slots"]], ["main", "second"])
        self.assertEqual(set(listed["slots"][0]), set(made) - {"generation", "edges", "effective_by"})

    def test_the_body_is_zeroed_before_anything_is_waited_for(self) -> None:
        """K24: from when it is sealed, what the server buffered of a secret is zeros."""
        body, create = BytesIO(), self.world.store.slots.create
        seen: list[bytes] = []

        def record(slot: NewSlot, actor: str) -> Deferred[Committed[SlotRecord]]:
            seen.append(body.getvalue())
            return create(slot, actor)

        self.patch(Request, "gotLength", lambda request, length: setattr(request, "content", body))
        self.patch(self.world.store.slots, "create", record)
        self.assertEqual(self.create()[0].code, 201)
        self.assertEqual(seen, [bytes(len(CANARY))])

    def test_what_was_stored_is_what_a_lease_brings(self) -> None:
        """The secret that came over HTTPS is sealed so that this Control Plane can open it again."""
        _, made = self.create(body=b"another-secret")
        self.world.route(self.ann, made["slot"], "other")
        connection, _ = self.world.enrolled()
        binding = self.binding()
        self.assertEqual(result_of(connection.ask(self.question(binding=binding))).WhichOneof("result"), "lease")

    def test_only_octets(self) -> None:
        """K11: JSON, text and a missing media type are refused."""
        for headers in ({"Content-Type": "application/json"}, {"Content-Type": "text/plain"}):
            response, document = self.create(headers=headers)
            self.assertEqual((response.code, document["code"]), (415, "octet_stream_only"))

    def test_secrets_that_cannot_be_sent(self) -> None:
        """P18: what could not stand in a header, or is not there at all, is refused before it is stored."""
        for body in (b"", b"line\nbreak", b"carriage\rreturn", b"nul\0", b"\xff\xfe", b"tab\t"):
            response, document = self.create(body=body)
            self.assertEqual((response.code, document["code"]), (400, "bad_secret"), body)
        self.assertEqual(len(self.call("GET", "/v1/slots")[1]["slots"]), 1)

    def test_arguments(self) -> None:
        """Unknown, missing and doubled arguments, unknown profiles, slots and targets that are no names."""
        for query, code in (
            ("", "bad_arguments"),
            ("?name=a&profile=openai", "bad_arguments"),
            ("?name=a&profile=openai&target=lab&extra=1", "bad_arguments"),
            ("?name=a&name=b&profile=openai&target=lab", "bad_arguments"),
            ("?name=a&profile=openai&target=lab&target=lab", "bad_arguments"),
            ("?name=a;profile=openai;target=lab", "bad_arguments"),
            ("?name=a&profile=OpenAI&target=lab", "unknown_profile"),
            ("?name=a&profile=openai&target=https://evil", "bad_target"),
            ("?name=%00&profile=openai&target=lab", "bad_name"),
            ("?name=My%20Slot&profile=openai&target=lab", "bad_name"),
            (f"?name={'a' * 64}&profile=openai&target=lab", "bad_name"),
            ("?name=&profile=openai&target=lab", "bad_name"),
        ):
            self.world.clock.advance(1)
            response, document = self.create(query)
            self.assertEqual((response.code, document["code"]), (400, code), query)
        self.assertEqual(self.create(f"?name={'a' * 63}&profile=openai&target=lab")[0].code, 201)

    def test_a_name_is_taken_once(self) -> None:
        response, document = self.create("?name=main&profile=openai&target=lab")
        self.assertEqual((response.code, document["code"]), (409, "already_exists"))

    def test_idempotency_keys_are_not_ignored(self) -> None:
        """A caller that believes in a key this API does not know is told so instead of being served twice."""
        response, document = self.create(headers={"Idempotency-Key": "x"})
        self.assertEqual((response.code, document["code"]), (400, "no_idempotency_key"))

    def test_others_see_nothing_of_it(self) -> None:
        """P16: Bob's list is empty."""
        self.world.principal("bob")
        _, listed = self.call("GET", "/v1/slots", token=self.world.token_text("bob", TokenKind.MANAGE))
        self.assertEqual(listed, {"slots": []})

    def test_a_caller_that_left_hides_no_defect(self) -> None:
        """What fails when nobody waits for its answer any more is in the log; what is refused then is not."""
        made = Deferred[Committed[SlotRecord]]()
        self.patch(self.world.store.slots, "create", lambda slot, actor: made)
        sent = {"Authorization": f"Bearer {self.manage}", "Content-Type": "application/octet-stream"}
        for error, logged in ((AlreadyExists("taken"), 0), (ZeroDivisionError(), 1)):
            made = Deferred()
            answer = self.treq.post(f"{URL}/v1/slots?name=x&profile=openai&target=lab", headers=sent, data=CANARY)
            answer.addErrback(lambda _: None)
            answer.cancel()
            self.treq.flush()
            made.errback(error)
            self.assertEqual(len(self.flushLoggedErrors(type(error))), logged)

    def test_a_mutation_waits_for_the_edges(self) -> None:
        """K14: the answer counts the Edge that acknowledged."""
        self.world.enrolled()
        sent = {"Authorization": f"Bearer {self.manage}", "Content-Type": "application/octet-stream"}
        answer = self.treq.post(f"{URL}/v1/slots?name=x&profile=openai&target=lab", headers=sent, data=CANARY)
        self.assertNoResult(answer)
        self.world.pass_time(0.2)
        self.treq.flush()
        document = json.loads(result_of(self.treq.content(result_of(answer))))
        self.assertEqual(document["edges"], {"acknowledged": 1, "cut_off": 0, "unconfirmed": 0})


class LifeTests(ApiCase):
    """What becomes of a slot that is there."""

    def change(self, what: str, revision: object = 1, slot: str = "", **keywords: Any) -> tuple[Any, ...]:
        method, change = ("PUT", "secret") if what == "rotate" else ("POST", what)
        headers = {"If-Match": f'"{revision}"'} if revision else {}
        if what == "rotate":
            headers["Content-Type"] = "application/octet-stream"
        self.headers = headers | keywords.pop("headers", {})
        return method, f"/v1/slots/{slot or self.slot.slot}/{change}"

    def done(self, *arguments: Any, body: bytes = b"") -> Any:
        response, document = self.call(*self.change(*arguments), headers=self.headers, body=body)
        self.assertEqual(response.code, 200, document)
        self.assertEqual(response.headers.getRawHeaders(b"etag"), [f'"{document["revision"]}"'.encode()])
        self.assertEqual(document["generation"], self.generation())
        return document

    def test_show(self) -> None:
        """One slot, as the list has it, with its ETag."""
        response, document = self.call("GET", f"/v1/slots/{self.slot.slot}")
        self.assertEqual(response.headers.getRawHeaders(b"etag"), [b'"1"'])
        self.assertEqual(self.call("GET", "/v1/slots")[1]["slots"], [document])

    def test_life(self) -> None:
        """K13: disable, enable, revoke; each moves the revision, and after the last nothing may change."""
        changes = (("disable", "disabled"), ("enable", "active"), ("revoke", "revoked"))
        for revision, (what, state) in enumerate(changes, 1):
            document = self.done(what, revision)
            self.assertEqual((document["state"], document["revision"]), (state, revision + 1))
        for what in ("disable", "enable", "revoke", "rotate"):
            arguments = self.change(what, 4)
            self.refused(409, "final_state", *arguments, headers=self.headers, body=CANARY if what == "rotate" else b"")

    def test_rotation(self) -> None:
        """P40: a lease brings what was stored last, under its own revision; the same body again is another revision."""
        document = self.done("rotate", 1, body=b"sk-second")
        self.assertEqual((document["revision"], document["credential_revision"]), (2, 2))
        self.slot = result_of(self.world.store.slots.get(self.ann, self.slot.slot))
        connection, _ = self.world.enrolled()
        answer = result_of(connection.ask(self.question()))
        self.assertTrue(answer.HasField("lease"))

    def test_preconditions(self) -> None:
        """K13: none 428, another revision 412, anything else 400; a rotation is held to the same."""
        for what in ("disable", "enable", "revoke", "rotate"):
            body = b"sk-second" if what == "rotate" else b""
            arguments = self.change(what, None)
            self.refused(428, "precondition_required", *arguments, headers=self.headers, body=body)
            arguments = self.change(what, 2)
            self.refused(412, "revision_mismatch", *arguments, headers=self.headers, body=body)
            arguments = self.change(what, None, headers={"If-None-Match": "*"})
            self.refused(400, "bad_precondition", *arguments, headers=self.headers, body=body)
            self.world.clock.advance(10)
        self.assertEqual(result_of(self.world.store.slots.get(self.ann, self.slot.slot)), self.slot)

    def test_foreign_and_unknown(self) -> None:
        """P16: another's slot, none, and what cannot be one, answer alike."""
        bob = self.world.slot(self.world.principal("bob"))
        answers = set()
        for slot in (bob.slot, "0198-nothing", "%2e%2e", "a" * 200):
            answers.add(self.refused(404, "not_found", "GET", f"/v1/slots/{slot}")["detail"])
            for what in ("disable", "rotate"):
                arguments = self.change(what, 1, slot)
                document = self.refused(404, "not_found", *arguments, headers=self.headers, body=b"")
                answers.add(document["detail"])
        self.assertEqual(len(answers), 1)

    def test_only_octets(self) -> None:
        """K11: a rotation takes a secret as a creation does."""
        arguments = self.change("rotate", 1, headers={"Content-Type": "text/plain"})
        self.refused(415, "octet_stream_only", *arguments, headers=self.headers, body=CANARY)
        arguments = self.change("rotate", 1)
        self.refused(400, "bad_secret", *arguments, headers=self.headers, body=b"a\nb")


class RateTests(ApiCase):
    def test_changes_of_one_principal(self) -> None:
        """P19: ten at once, then one a second; reading is free, and others are not kept waiting."""
        self.world.principal("bob")
        for number in range(10):
            self.assertEqual(self.create(f"?name=n{number}&profile=openai&target=lab")[0].code, 201)
        response, document = self.create()
        self.assertEqual((response.code, document["code"]), (429, "too_many_calls"))
        self.assertEqual(response.headers.getRawHeaders(b"retry-after"), [b"1"])
        self.assertEqual(self.call("GET", "/v1/slots")[0].code, 200)
        self.assertEqual(self.create(token=self.world.token_text("bob", TokenKind.MANAGE))[0].code, 201)
        self.world.pass_time(1)
        self.assertEqual(self.create()[0].code, 201)

    def test_refusals_that_leave_a_row(self) -> None:
        """P26, P47: a ``use`` token cannot fill the audit; past a burst it is refused without a row."""
        use = self.world.token_text("ann", TokenKind.USE)
        rows = len(result_of(self.world.store.audit.tail(1000)))
        statuses = [self.call("GET", "/v1/slots", token=use)[0].code for _ in range(12)]
        self.assertEqual(statuses, [403] * 10 + [429] * 2)
        self.assertEqual(len(result_of(self.world.store.audit.tail(1000))), rows + 10)
        self.assertEqual(self.call("GET", "/v1/slots")[0].code, 200)


class RouteTests(ApiCase):
    def put(self, model: str, document: Any = None, **keywords: Any) -> tuple[IResponse, Any]:
        body = {"slot": self.slot.slot, "upstream_model": "up", "selector": ""} if document is None else document
        headers = {"Content-Type": "application/json", "If-None-Match": "*"} | keywords.pop("headers", {})
        headers = {name: value for name, value in headers.items() if value is not None}
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.call("PUT", f"/v1/routes/{model}", headers=headers, body=sent, **keywords)

    def test_create_change_and_list(self) -> None:
        response, made = self.put("gpt%2F4%20x%C3%A9")
        self.assertEqual((response.code, made["model"], made["revision"]), (201, "gpt/4 xé", 1))
        response, changed = self.put("gpt%2F4%20x%C3%A9", headers={"If-None-Match": None, "If-Match": '"1"'})
        self.assertEqual((response.code, changed["revision"]), (200, 2))
        self.assertEqual(response.headers.getRawHeaders(b"etag"), [b'"2"'])
        _, listed = self.call("GET", "/v1/routes")
        self.assertEqual([route["model"] for route in listed["routes"]], ["gpt/4 xé", "small"])

    def test_preconditions(self) -> None:
        """K13: nothing is changed without saying what is expected, or when something else is there."""
        for headers, status, code in (
            ({"If-None-Match": None}, 428, "precondition_required"),
            ({"If-Match": '"1"'}, 400, "bad_precondition"),
            ({"If-None-Match": None, "If-Match": "1"}, 400, "bad_precondition"),
            ({"If-None-Match": None, "If-Match": "*"}, 400, "bad_precondition"),
            ({"If-None-Match": None, "If-Match": '"7"'}, 412, "revision_mismatch"),
            ({}, 412, "revision_mismatch"),
        ):
            response, document = self.put("small", headers=headers)
            self.assertEqual((response.code, document["code"]), (status, code), headers)

    def test_anothers_slot_is_an_unknown_slot(self) -> None:
        """P16: same status, same body."""
        bob = self.world.principal("bob")
        bobs = self.world.slot(bob)
        foreign = self.put("m", {"slot": bobs.slot, "upstream_model": "u", "selector": ""})
        unknown = self.put("m", {"slot": "0" * 36, "upstream_model": "u", "selector": ""})
        self.assertEqual(foreign[0].code, 404)
        self.assertEqual(foreign[1], unknown[1])

    def test_bodies(self) -> None:
        """Anything but an object of exactly three strings."""
        good = {"slot": self.slot.slot, "upstream_model": "u", "selector": ""}
        for document in (b"", b"[]", b"{", {}, good | {"more": 1}, good | {"slot": 1}, good | {"upstream_model": ""}):
            self.assertEqual(self.put("m", document)[0].code, 400, document)
        self.assertEqual(self.put("m", good | {"selector": "no equals"})[1]["code"], "bad_selector")
        self.assertEqual(self.put("m", headers={"Content-Type": "text/plain"})[0].code, 415)

    def test_models_are_one_segment(self) -> None:
        for model in ("a/b", "%00", "x" * 257):
            response, document = self.put(model)
            self.assertEqual((response.code, document["code"]), (400, "bad_model"), model)
        for model in ("%FF", "a//b"):
            self.assertEqual(self.put(model)[1]["code"], "no_such_call")

    def test_a_selector_that_nothing_can_match(self) -> None:
        """S8: names of Nodes and providers are no labels; a route that asks for one is refused when it is made."""
        headers = {"Content-Type": "application/json", "If-None-Match": "*"}
        for selector in ("node=node-1", "region=eu,provider=p"):
            body = json.dumps({"slot": self.slot.slot, "upstream_model": "m", "selector": selector}).encode()
            self.refused(400, "bad_selector", "PUT", "/v1/routes/other", headers=headers, body=body)
