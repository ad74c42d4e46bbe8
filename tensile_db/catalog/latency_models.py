"""Latency samples and models of kinds of ops, by hardware.  The caller owns the transaction."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, false, func, insert, select, text

from tensile_db.catalog import schema
from tensile_db.catalog.many_rows import insert_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """A measured op."""

    kind: str
    #: By name; sizes are logarithms to base 2.
    features: Mapping[str, float]
    flops: int
    moved_nbytes: int
    utilization: float
    latency_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """What was learned of one kind; the errors are None where there is no network."""

    kind: str
    network: Mapping[str, Any] | None
    roofline_scale: float
    sample_count: int
    held_out_count: int | None
    r_squared: float | None
    r_squared_log: float | None
    median_relative_error: float | None


_SAMPLE_TYPES = {
    "hardware": "text",
    "probe": "integer",
    "kind": "text",
    "features": "jsonb",
    "flops": "bigint",
    "moved_nbytes": "bigint",
    "utilization": "double precision",
    "latency_ns": "bigint",
}
_SAMPLE_FIELDS = tuple(field.name for field in dataclasses.fields(SampleRow))
_MODEL_FIELDS = tuple(field.name for field in dataclasses.fields(ModelRow))


def try_writing(conn: Connection) -> None:
    """Raise what writing samples would, where it may not be: nobody measures for minutes to learn that."""
    table = schema.latency_samples
    conn.execute(insert(table).from_select(["hardware"], select(table.c.hardware).where(false())))


def add_samples(conn: Connection, hardware: str, probe: int, samples: Iterable[SampleRow]) -> None:
    """Add what was measured of one probe."""
    rows = (
        (hardware, probe, *(getattr(sample, name) for name in list(_SAMPLE_TYPES)[2:])) for sample in samples
    )
    insert_rows(conn, schema.latency_samples, list(_SAMPLE_TYPES), list(_SAMPLE_TYPES.values()), rows)


def next_probe(conn: Connection, hardware: str) -> int:
    """Return the number after the last probe that left samples."""
    samples = schema.latency_samples.c
    query = select(func.max(samples.probe)).where(samples.hardware == hardware)
    last = conn.execute(query).scalar_one()
    return 0 if last is None else int(last) + 1


def read_samples(conn: Connection, hardware: str) -> list[SampleRow]:
    """Return all samples of the hardware, in the order in which they were measured."""
    samples = schema.latency_samples.c
    query = (
        select(*(samples[name] for name in _SAMPLE_FIELDS))
        .where(samples.hardware == hardware)
        .order_by(samples.id)
    )
    return [SampleRow(**row) for row in conn.execute(query).mappings()]


def replace_models(conn: Connection, hardware: str, models: Iterable[ModelRow]) -> None:
    """Make these the hardware's models."""
    # Two at once would each insert what the other one has not seen to delete.
    conn.execute(text("LOCK TABLE tensile.latency_models IN SHARE ROW EXCLUSIVE MODE"))
    conn.execute(delete(schema.latency_models).where(schema.latency_models.c.hardware == hardware))
    rows = [{"hardware": hardware} | dataclasses.asdict(model) for model in models]
    if rows:
        conn.execute(insert(schema.latency_models), rows)


def read_models(conn: Connection, hardware: str, kinds: Collection[str]) -> list[ModelRow]:
    """Return the models of these kinds of ops; those of which nothing is known are left out."""
    models = schema.latency_models.c
    query = (
        select(*(models[name] for name in _MODEL_FIELDS))
        .where(models.hardware == hardware, models.kind.in_(sorted(kinds)))
        .order_by(models.kind)
    )
    return [ModelRow(**row) for row in conn.execute(query).mappings()]


def has_models(conn: Connection, hardware: str) -> bool:
    """Tell whether anything was learned of the hardware."""
    models = schema.latency_models.c
    query = select(models.kind).where(models.hardware == hardware).limit(1)
    return conn.execute(query).one_or_none() is not None


def forget(conn: Connection, hardware: str) -> None:
    """Remove everything that is known of the hardware."""
    for table in (schema.latency_samples, schema.latency_models):
        conn.execute(delete(table).where(table.c.hardware == hardware))
