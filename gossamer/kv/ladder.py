"""The caches that `--kv auto` chooses among, and what each costs where nobody measured it.

Every one has a kernel of its own on GPUs, or is the best known in its bytes. A calibration measures
what they cost the model at hand (gossamer.integrations.expected_loss) under these names.
"""

from collections.abc import Mapping
from dataclasses import dataclass

# Bits of K and V by eighths of a row, between two of KERNEL_PAIRS (gossamer.kv.bits): the general
# kernel decodes them.
EIGHTHS = {"coded:17.2%": ("84422220", "42222220")}
LADDER = (
    "dense:int8",
    "k=dense:int4@channel,v=dense:int4@group",
    "dense:int4",
    "coded:23.5%",
    "coded:20.5%",
    "coded:17.2%",
    "coded:14.5%",
    "k=sparse:.5:int4@channel,v=sparse:.5:int4,v_basis=pca,k_policy=gradient,sink=32",
)


@dataclass(frozen=True)
class Loss:
    """What a cache is expected to add to the NLL of a token: its mean, and half of an interval of
    95%."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ± {self.half:.4f}"


# Of SmolLM2's shipped calibration: for random weights, and calibrations that measured no losses.
TYPICAL: Mapping[str, Loss] = {
    "dense:int8": Loss(0.0001, 0.0001),
    "k=dense:int4@channel,v=dense:int4@group": Loss(0.0089, 0.0027),
    "dense:int4": Loss(0.0312, 0.0033),
    "coded:23.5%": Loss(0.0070, 0.0009),
    "coded:20.5%": Loss(0.0170, 0.0024),
    "coded:17.2%": Loss(0.0347, 0.0041),
    "coded:14.5%": Loss(0.0558, 0.0071),
    LADDER[-1]: Loss(0.0191, 0.0028),
}
