"""Which LoRA adapters the rows of a step have: on the host, and on the device for CUDA graphs."""

import numpy as np
import torch
from torch import Tensor

from gossamer.engine.step import Ints
from gossamer.engine.transfer import ints
from gossamer.models import LoRABank
from gossamer.models.lora import NO_ADAPTER, LoRA

# Tokens times slots, up to which all slots are computed for all tokens rather than each adapter for
# its own. A step of SmolLM2 on one core, 8 tokens, 3 adapters of rank 16: 40 and 55 ms.
FEW = 64


class AdapterRows:
    """Slots of adapters by row of the page tables, which padding rows never have.

    bank: None for an engine that can have none. slots: [rows], the device's copy.
    """

    def __init__(self, bank: LoRABank | None, rows: int, device: torch.device) -> None:
        self.bank = bank
        self.slots = torch.full((rows,), NO_ADAPTER, dtype=torch.int64, device=device)
        self._known = np.full(rows, NO_ADAPTER)

    @property
    def kinds(self) -> list[int]:
        """Of CUDA graphs: for steps of no adapter, of one, and of up to as many as there may be."""
        return [0] if self.bank is None else sorted({0, 1, self.bank.slots})

    def enter(self, entries: list[tuple[int, int]]) -> None:
        """Sequences that are new in their row: (row, slot)."""
        if self.bank is not None and entries:
            rows, slots = np.array(entries).T
            self._known[rows] = slots
            self.slots[ints(rows, self.slots.device)] = ints(slots, self.slots.device)

    def present(self, rows: list[int] | Ints) -> set[int]:
        """The adapters of these rows."""
        if self.bank is None:
            return set()
        return {*self._known[rows].tolist()} - {NO_ADAPTER}

    def kind(self, present: set[int]) -> int:
        """The kind of graph that steps with these adapters have."""
        return next(kind for kind in self.kinds if kind >= len(present))

    def of_tokens(self, rows: Ints) -> Tensor:
        """Slots of tokens in these rows [tokens], on the device."""
        return ints(self._known[rows], self.slots.device)

    def eager(self, present: set[int], rows: Ints) -> LoRA | None:
        """Of tokens in these rows [tokens], where no graph is used."""
        if self.bank is None or not present:
            return None
        slots, device = self._known[rows], self.slots.device
        if len(present) > 1 and len(rows) * self.bank.slots <= FEW:
            return self.bank.masked(self.of_tokens(rows), single=False)
        if len(present) == 1 and NO_ADAPTER not in slots:
            return self.bank.segments([(slot, None) for slot in present])
        return self.bank.segments(
            [(slot, ints(np.flatnonzero(slots == slot), device)) for slot in sorted(present)]
        )

    def masked(self, slots: Tensor, kind: int) -> LoRA | None:
        """Of tokens with these slots [tokens] on the device, in graphs of this kind."""
        if self.bank is None or kind == 0:
            return None
        return self.bank.masked(slots, single=kind == 1)
