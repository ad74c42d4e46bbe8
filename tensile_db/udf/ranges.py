"""What whole numbers the arguments of a training may be.

Runs inside PostgreSQL, and in the worker.
"""

from collections.abc import Mapping

#: The range of columns of type integer and bigint.
_INT4_MAX = 2**31 - 1
INT8_MAX = 2**63 - 1

#: Argument -> its least and its greatest value.
WHOLE_ARGUMENTS: Mapping[str, tuple[int, int]] = {
    "batch_size": (1, _INT4_MAX),
    "epochs": (1, _INT4_MAX),
    "priority": (-_INT4_MAX, _INT4_MAX),
    "seed": (0, INT8_MAX),
}
