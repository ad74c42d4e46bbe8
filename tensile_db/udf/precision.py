"""The names that the option "precision" may have.

Runs inside PostgreSQL, and in the worker.
"""

from collections.abc import Mapping
from typing import Any

FLOAT32, TF32, BFLOAT16, FLOAT16 = "float32", "tf32", "bfloat16", "float16"

#: What may be written -> what it means.
_MEANING: Mapping[str, str] = {
    FLOAT32: FLOAT32,
    TF32: TF32,
    BFLOAT16: BFLOAT16,
    "bf16": BFLOAT16,
    FLOAT16: FLOAT16,
    "fp16": FLOAT16,
}


def wrong_precision(value: Any) -> str:
    """Return what a wrong value should have been, or ""."""
    if isinstance(value, str) and value in _MEANING:
        return ""
    return f'"{FLOAT32}", "{TF32}", "{BFLOAT16}" or "{FLOAT16}"'


def precision_name(options: Mapping[str, Any]) -> str:
    """Return the precision that a request's options ask for, which were checked."""
    return _MEANING[options.get("precision") or FLOAT32]
