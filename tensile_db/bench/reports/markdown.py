"""Markdown, and figures as people read them."""

from collections.abc import Iterable, Sequence

GIB = 2**30


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *[[cell(value) for value in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(value: object) -> str:
    """Return a cell: rates with three decimals, nothing for None."""
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def gib(nbytes: int) -> str:
    """Return a size in GiB."""
    return f"{nbytes / GIB:.2f}"


def ms(ns: int) -> str:
    """Return a time in ms."""
    return f"{ns / 1e6:.1f}"
