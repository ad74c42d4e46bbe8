"""The policies by name.

Those whose plans heed no budget come first: jobs that use the others share what they leave.
"""

from collections.abc import Callable, Sequence

from tensile_db.errors import UnknownName
from tensile_db.scheduler.plan import DeviceSpec, Plan
from tensile_db.scheduler.policies import (
    auto,
    auto_split,
    capuchin,
    checkpoint,
    superneurons,
    tensile,
    tsplit,
    vanilla,
    vdnn,
)
from tensile_db.scheduler.request import JobRequest

#: Plans all jobs of one policy together, given the device and the bytes that they may hold.
Policy = Callable[[Sequence[JobRequest], DeviceSpec, int], tuple[Plan, ...]]

POLICIES: dict[str, Policy] = {
    "vanilla": vanilla.plan,
    "vdnn_conv": vdnn.plan_conv,
    "vdnn_all": vdnn.plan_all,
    "checkpoint": checkpoint.plan,
    "checkpoint_articulation": checkpoint.plan_articulation,
    "superneurons": superneurons.plan,
    "superneurons_memory": superneurons.plan_memory,
    "tensile": tensile.plan,
    "auto": auto.plan,
    "auto_exact": auto.plan_exact,
    "auto_split": auto_split.plan,
    "capuchin": capuchin.plan,
    "tsplit": tsplit.plan,
}

#: Those that look for splits once for each job (in_parts.py), and whether only for such as keep the bits.
LOOK_FOR_SPLITS = {"auto": False, "auto_exact": True}

#: Those whose plans may hold less than the largest op needs as a whole.
SPLITTING = frozenset({"auto", "auto_exact", "auto_split", "tsplit"})

#: Those whose plans take what they take.
UNBUDGETED = frozenset(
    {
        "vanilla",
        "vdnn_conv",
        "vdnn_all",
        "checkpoint",
        "checkpoint_articulation",
        "superneurons",
        "superneurons_memory",
    }
)


def require_policy(name: str) -> None:
    """Raise UnknownName, suggesting the nearest, for a name that is no policy's."""
    if name not in POLICIES:
        raise UnknownName("policy", name, POLICIES)
