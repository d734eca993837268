"""Key files that several processes make at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from iop.crypto.issuer import Issuer, PinnedIssuers
from iop.crypto.keyring import Keyring

SECONDS = 60.0


class AtOnceTests(SynchronousTestCase):
    """P46: one process makes the file and is told so; the others are refused, and what it made stays."""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir()

    def race(self, *commands: Sequence[str]) -> dict[str, str]:
        """Run ``iop`` commands at once; what the one that succeeded says."""
        processes = [
            subprocess.Popen(  # noqa: S603 - our own interpreter
                [sys.executable, "-m", "iop", *command, "--json"], stdout=subprocess.PIPE, text=True
            )
            for command in commands
        ]
        told = [json.loads(process.communicate(timeout=SECONDS)[0]) for process in processes]
        (winner,) = (said for process, said in zip(processes, told, strict=True) if process.returncode == 0)
        refused = [said["error"]["code"] for said in told if said is not winner]
        self.assertEqual(refused, ["already_exists"] * (len(commands) - 1))
        assert isinstance(winner, dict)
        return winner

    def test_keyring(self) -> None:
        path = self.folder / "keyring.json"
        winner = self.race(*[["keyring", "init", "--out", str(path)]] * 4)
        self.assertEqual(Keyring.load(path).primary, winner["primary"])

    def test_issuer(self) -> None:
        """The loser's key is gone, too: nobody pins it."""
        public = self.folder / "issuers.json"
        keys = [self.folder / f"issuer-{number}.json" for number in range(4)]
        winner = self.race(*(["issuer", "init", "--key", str(key), "--public", str(public)] for key in keys))
        (left,) = (key for key in keys if key.exists())
        self.assertEqual(str(left), winner["key"])
        ((key_id, _),) = PinnedIssuers.load(public)
        self.assertEqual((key_id.hex(), Issuer.load(left).key_id), (winner["key_id"], key_id))
