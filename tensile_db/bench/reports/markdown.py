"""Markdown, and figures as people read them."""

from collections.abc import Iterable, Sequence

MIB, GIB = 2**20, 2**30


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *[[cell(value) for value in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(value: object) -> str:
    """Return a cell: rates with three decimals, nothing for None; of text one line, bars escaped."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}"
    return " ".join(str(value).splitlines()).replace("|", "\\|")


def gib(nbytes: int) -> str:
    """Return a size in GiB, with two decimals, or two digits where it is small."""
    size = nbytes / GIB
    return f"{size:.2f}" if size >= 0.1 else f"{size:.2g}"


def ms(ns: int) -> str:
    """Return a time in ms."""
    return f"{ns / 1e6:.1f}"
