from __future__ import annotations

from dataclasses import replace

from twisted.trial.unittest import TestCase

from iop.interfaces import IStore
from iop.records import SlotState
from iop.store.memory import MemoryStore
from tests.store import contract


class MemoryContractTests(contract.StoreContract, TestCase):
    def make_store(self) -> IStore:
        self.memory = MemoryStore(contract.DEPLOYMENT, lambda: self.now_ms)
        return self.memory

    async def force_slot(self, slot: str, state: SlotState, credential_revision: int) -> None:
        slots = self.memory._tables.slots
        record, secret = slots[slot]
        slots[slot] = (replace(record, state=state, credential_revision=credential_revision), secret)
