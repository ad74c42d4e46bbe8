"""Workers and their devices.  The caller owns the transaction."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from tensile_db.catalog import schema
from tensile_db.scheduler.plan import DeviceSpec

#: Capture's words for where an architecture comes from, where the catalog has others, as users see them in
#: tensile.architectures: kind "plugin" is what a package offers.
CATALOG_KINDS = {"builtin": "mlp", "package": "plugin"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A worker that has not said that it is gone."""

    id: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """A device's memory and time at present."""

    used_nbytes: int
    peak_nbytes: int
    #: What the shares of its jobs take.
    shared_nbytes: int
    #: From 0 to 1; None where it cannot be told.
    utilization: float | None
    #: Held by other processes than the worker's; None where it cannot be told.
    others_nbytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On what terms a worker takes jobs."""

    #: Held at a time.
    max_jobs: int = 16
    #: It runs one at a time.
    runs_alone: bool = False
    lease_s: float = 30.0
    #: Where it keeps rows that were read: machine and folder.
    cache: str = ""


def register(
    conn: Connection, *, host: str, pid: int, version: str, device: DeviceSpec, terms: Terms | None = None
) -> int:
    """Make a worker and its device known; return the worker's id."""
    terms = terms or Terms()
    worker = conn.execute(
        insert(schema.workers)
        .values(
            login=func.current_user(),
            host=host,
            pid=pid,
            version=version,
            device_name=device.name,
            memory_nbytes=device.memory_nbytes,
            state="starting",
            max_jobs=terms.max_jobs,
            runs_alone=terms.runs_alone,
            lease_s=terms.lease_s,
            cache=terms.cache,
        )
        .returning(schema.workers.c.id)
    ).scalar_one()
    conn.execute(
        insert(schema.devices).values(
            worker_id=worker,
            name=device.name,
            memory_nbytes=device.memory_nbytes,
            d2h_bytes_per_s=device.d2h_bytes_per_s,
            h2d_bytes_per_s=device.h2d_bytes_per_s,
            duplex=device.duplex,
            flops_per_s=device.flops_per_s,
            memory_bytes_per_s=device.memory_bytes_per_s,
            op_overhead_ns=device.op_overhead_ns,
        )
    )
    return int(worker)


def set_state(conn: Connection, worker: int, state: str) -> None:
    """Say where in its life the worker is; a sign of life at the same time.

    Wakes the other workers: it may be one more to take jobs, or one less.
    """
    workers = schema.workers.c
    conn.execute(
        update(schema.workers).where(workers.id == worker).values(state=state, heartbeat_at=func.now())
    )
    conn.execute(select(func.pg_notify("tensile_jobs", "")))


def pulse(conn: Connection, worker: int, use: DeviceUse) -> None:
    """Say that the worker is alive, and how its device is used."""
    workers = schema.workers.c
    conn.execute(update(schema.workers).where(workers.id == worker).values(heartbeat_at=func.now()))
    _write_use(conn, worker, use)


def write_use(conn: Connection, worker: int, use: DeviceUse) -> None:
    """Say how the worker's device is used, without waiting for the disk: the next one replaces it soon.

    Makes the transaction's commit asynchronous, so that it must hold nothing that matters.
    """
    conn.execute(select(func.set_config("synchronous_commit", "off", True)))
    _write_use(conn, worker, use)


def on_host(conn: Connection, host: str) -> list[WorkerRow]:
    """Return the workers of a machine that have not said that they are gone."""
    workers = schema.workers.c
    query = select(workers.id, workers.pid).where(workers.host == host, workers.state != "gone")
    return [WorkerRow(id=row.id, pid=row.pid) for row in conn.execute(query.order_by(workers.id))]


def write_architectures(conn: Connection, known: Iterable[tuple[str, str, str]]) -> None:
    """Let the backend know the architectures of this worker, so that it can check names.

    known: (name, kind, what it resolves to).  Names of other workers stay.
    """
    rows = [{"name": name, "kind": kind, "resolves_to": to} for name, kind, to in sorted(known)]
    if rows:
        query = upsert(schema.architectures)
        replaced = {"kind": query.excluded.kind, "resolves_to": query.excluded.resolves_to}
        changed = (schema.architectures.c.kind != query.excluded.kind) | (
            schema.architectures.c.resolves_to != query.excluded.resolves_to
        )
        conn.execute(query.on_conflict_do_update(index_elements=["name"], set_=replaced, where=changed), rows)


def architecture_kinds(conn: Connection) -> dict[str, str]:
    """Return the kind of each architecture that a worker has told of, by name.  Takes no lock."""
    c = schema.architectures.c
    return {row.name: row.kind for row in conn.execute(select(c.name, c.kind))}


def offered_by(conn: Connection, architecture: str) -> str | None:
    """Return what a package called an architecture, as some worker has told; None where none has."""
    c = schema.architectures.c
    query = select(c.resolves_to).where(c.name == architecture, c.kind == CATALOG_KINDS["package"])
    return conn.execute(query).scalar_one_or_none()


def _write_use(conn: Connection, worker: int, use: DeviceUse) -> None:
    devices = schema.devices.c
    conn.execute(
        update(schema.devices)
        .where(devices.worker_id == worker)
        .values(
            used_nbytes=use.used_nbytes,
            peak_nbytes=use.peak_nbytes,
            shared_nbytes=use.shared_nbytes,
            utilization=use.utilization,
            others_nbytes=use.others_nbytes,
            updated_at=func.now(),
        )
    )
