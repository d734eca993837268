"""One request's name on its way through all roles. Real processes."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.roles import ROLES, Deployment

ID = "one-name.for_all-1"


class RequestIdTests(SynchronousTestCase):
    def test_one_id_everywhere(self) -> None:
        """P26: a caller's request id is in the answer, in the logs of Edge, Control Plane and Node, and in its lease's
        audit row, so that one search finds everything about one request.
        """
        deployment = Deployment(Path(self.mktemp()).absolute())
        self.addCleanup(deployment.stop)
        deployment.start(*ROLES)
        deployment.ready()
        connection = deployment.connect()
        self.addCleanup(connection.close)
        with deployment.begin(connection, headers={"X-Request-Id": ID}) as answer:
            self.assertEqual((answer.status, answer.headers["X-Request-Id"]), (200, ID))
            answer.read()
        for role, names in (
            (deployment.edge, ("edge.request.routed", "edge.lease.acquired", "edge.request.finished")),
            (deployment.control_plane, ("control.lease.granted",)),
            (deployment.node, ("node.run.started", "node.run.finished")),
        ):
            for name in names:
                self.assertIn(ID, [event["request_id"] for event in role.wait_for(name)], name)
        (lease,) = deployment.control_plane.events("control.lease.granted")
        with closing(sqlite3.connect(f"file:{deployment.home.database}?mode=ro", uri=True)) as store:
            rows = [
                json.loads(text) for (text,) in store.execute("SELECT details FROM audit WHERE action = 'lease.issue'")
            ]
        self.assertEqual([row["node"] for row in rows if row["request"] == ID], [lease["node"]])
