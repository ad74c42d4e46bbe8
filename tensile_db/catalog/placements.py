"""Where jobs can go: what live workers offer, and what is known of the jobs that wait.

The caller owns the transaction.  All times are the database's, so that hosts need not agree on theirs.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    DateTime,
    Integer,
    Row,
    Select,
    Text,
    all_,
    and_,
    any_,
    case,
    column,
    exists,
    func,
    literal,
    or_,
    select,
    table,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, array

from tensile_db.catalog import fence as fences
from tensile_db.catalog import jobs, leases, schema
from tensile_db.catalog.fence import Fence
from tensile_db.errors import format_nbytes
from tensile_db.scheduler.placing import Need, Offer

#: Jobs that are placed at a time, the first in line.
_MOST_NEEDS = 500

#: Kinds of jobs that take none of a worker's places, and those that come where there is none.
_WITHOUT_PLACE = ("search", "serve")
_ALWAYS_COME = ("serve",)

#: Of jobs that are as large.
_ALIKE = ("architecture", "batch_size", "optimizer", "source_oid")

#: Options that decide how large a network's step is.
_OF_SIZE = ("image_size", "raw_shape", "hidden_units", "freeze_backbone")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWorker:
    """A worker that takes jobs, and when it was last heard of."""

    offer: Offer
    heartbeat_at: datetime


def live_workers(conn: Connection) -> list[LiveWorker]:
    """Return the workers that take jobs at present.  Takes no lock."""
    offers = _offers.c
    return [_live(row) for row in conn.execute(select(_offers).order_by(offers.worker_id))]


def waiting(
    conn: Connection, offers: Sequence[Offer], *, lease_s: float, without: Collection[int] = ()
) -> list[Need]:
    """Return the jobs that wait: for a worker, if one of these could take them now, and in line at one.

    In the order of the line, the first `_MOST_NEEDS`; without: jobs that are left out.  Takes no lock.
    """
    rows = schema.jobs.c
    free = [offer for offer in offers if offer.held < offer.places]
    could_come = or_(_can_take(free), and_(rows.kind.in_(_ALWAYS_COME), _can_take(offers)))
    expired = leases.has_expired(lease_s)
    alike = _alike().lateral("alike")
    wanted = func.coalesce(rows.vanilla_peak_nbytes, alike.c.vanilla_peak_nbytes)
    query = (
        select(
            rows.id,
            rows.kind,
            rows.options["device"].astext.label("device"),
            rows.needed_nbytes,
            alike.c.needed_nbytes.label("likely_nbytes"),
            case((wanted.is_not(None), func.least(wanted, rows.memory_limit_nbytes))).label("wanted_nbytes"),
            case(
                (rows.search_id.is_(None), func.array_remove(array([rows.rows_cache]), None)),
                else_=_of_trials(),
            ).label("caches"),
            (func.coalesce(rows.iteration, 0) > 0).label("begun"),
            case((rows.state == "waiting", case((~expired, rows.worker_id)))).label("line_of"),
            rows.meant_for,
        )
        .select_from(schema.jobs.outerjoin(alike, true()))
        .where(
            or_(and_(or_(rows.state == "queued", expired), could_come), rows.state == "waiting"),
            ~rows.cancel_requested,
            ~rows.pause_requested,
            rows.id != all_(jobs.ids_of(without)),
        )
        .order_by(rows.priority.desc(), rows.id)
        .limit(_MOST_NEEDS)
    )
    return [_need(row) for row in conn.execute(query)]


def still_claimable(conn: Connection, among: Collection[int], *, lease_s: float) -> frozenset[int]:
    """Return which of these jobs nobody holds.  Takes no lock."""
    if not among:
        return frozenset()
    rows = schema.jobs.c
    query = select(rows.id).where(
        rows.id == any_(jobs.ids_of(among)),
        or_(rows.state == "queued", leases.has_expired(lease_s)),
    )
    return frozenset(conn.execute(query).scalars())


def too_large(conn: Connection, offers: Sequence[Offer]) -> dict[int, int]:
    """Return the queued jobs that a device has refused and that none of these has enough memory for.

    With the least that would do, in bytes.
    """
    rows = schema.jobs.c
    query = select(rows.id, rows.needed_nbytes).where(
        rows.state == "queued", rows.needed_nbytes.is_not(None), ~_can_take(offers)
    )
    return {row.id: row.needed_nbytes for row in conn.execute(query)}


def mean_for(conn: Connection, fence: Fence, *, worker: int) -> bool:
    """Let the row of a job in line say to which worker it goes once it is given back.

    Returns False where the job is another attempt's, or its owner has locked its row, for which nobody waits.
    """
    rows = schema.jobs.c
    free = select(rows.id).where(fence.owns()).with_for_update(skip_locked=True, key_share=True)
    query = update(schema.jobs).where(rows.id == free.scalar_subquery()).values(meant_for=worker)
    return conn.execute(query).rowcount == 1


def pass_on(conn: Connection, fence: Fence, *, needed_nbytes: int) -> bool:
    """Let go of a job that is too large for this worker's device, if another live worker's would do.

    needed_nbytes: the least that would; kept in the job's row, also for jobs like it.
    Returns False, with the job still held, where there is no such worker.  Raises LostLease.
    """
    rows = schema.jobs.c
    would_do = exists().where(
        _offers.c.worker_id != fence.worker,
        _offers.c.memory_nbytes >= needed_nbytes,
        _offers.c.device == func.coalesce(rows.options["device"].astext, _offers.c.device),
    )
    query = select(rows.id).where(
        fence.owns(), func.coalesce(rows.memory_limit_nbytes, needed_nbytes) >= needed_nbytes, would_do
    )
    fences.write(conn, fence, needed_nbytes=needed_nbytes)
    if conn.execute(query).first() is None:
        return False
    reason = f"waits for a device with {format_nbytes(needed_nbytes)}"
    jobs.give_back(conn, fence, wait_reason=reason, needed_nbytes=needed_nbytes)
    return True


def largest_memory(conn: Connection) -> int | None:
    """Return the memory of the largest device of a live worker, in bytes; None where there is none."""
    largest: int | None = conn.execute(select(func.max(_offers.c.memory_nbytes))).scalar_one()
    return largest


#: The view tensile.offers.
_offers = table(
    "offers",
    column("worker_id", BigInteger),
    column("device", Text),
    column("memory_nbytes", BigInteger),
    column("shared_nbytes", BigInteger),
    column("max_jobs", Integer),
    column("jobs", BigInteger),
    column("preparing", BigInteger),
    column("in_line", BigInteger),
    column("runs_alone", Boolean),
    column("flops_per_s", BigInteger),
    column("cache", Text),
    column("heartbeat_at", DateTime(timezone=True)),
    schema=schema.SCHEMA,
)


def _can_take(offers: Sequence[Offer]) -> ColumnElement[bool]:
    """Return the condition on tensile.jobs that one of the workers can take the job, as placing has it."""
    rows = schema.jobs.c
    known = (
        func.unnest(
            literal([offer.device for offer in offers], ARRAY(Text)),
            literal([offer.memory_nbytes for offer in offers], ARRAY(BigInteger)),
        )
        .table_valued(column("device", Text), column("nbytes", BigInteger), name="known")
        .render_derived()
    )
    return (
        exists()
        .select_from(known)
        .where(
            known.c.device == func.coalesce(rows.options["device"].astext, known.c.device),
            known.c.nbytes >= func.coalesce(rows.needed_nbytes, 0),
        )
        .correlate(schema.jobs)
    )


def _alike() -> Select[Any]:
    """Return what the newest job like it tells of a job's size: the least that would do, and all it wants."""
    rows, other, plans = schema.jobs.c, schema.jobs.alias("other"), schema.plans.c
    # A plan that splits ops or packs tensors may do with less than whole ops can.
    bound = (
        select(func.least(plans.lower_bound_peak_nbytes, plans.guaranteed_peak_nbytes))
        .where(plans.job_id == other.c.id)
        .order_by(plans.version)
        .limit(1)
        .scalar_subquery()
    )
    return (
        select(
            func.coalesce(other.c.needed_nbytes, bound).label("needed_nbytes"), other.c.vanilla_peak_nbytes
        )
        .where(
            *(other.c[name] == rows[name] for name in _ALIKE),
            *(other.c.options[name].is_not_distinct_from(rows.options[name]) for name in _OF_SIZE),
            or_(other.c.vanilla_peak_nbytes.is_not(None), other.c.needed_nbytes.is_not(None)),
        )
        .order_by(other.c.id.desc())
        .limit(1)
        .correlate(schema.jobs)
    )


def _of_trials() -> ColumnElement[Any]:
    """Return who has the rows of a trial: whoever has run one of the same search's."""
    trial = schema.jobs.alias("trial")
    return (
        select(func.array_agg(trial.c.rows_cache.distinct()))
        .where(trial.c.search_id == schema.jobs.c.search_id, trial.c.rows_cache.is_not(None))
        .correlate(schema.jobs)
        .scalar_subquery()
    )


def _live(row: Row[Any]) -> LiveWorker:
    return LiveWorker(
        offer=Offer(
            worker=row.worker_id,
            device=row.device,
            cache=row.cache,
            memory_nbytes=row.memory_nbytes,
            shared_nbytes=row.shared_nbytes,
            held=row.jobs,
            preparing=row.preparing,
            in_line=row.in_line,
            places=row.max_jobs,
            alone=row.runs_alone,
            flops_per_s=row.flops_per_s or 1,
        ),
        heartbeat_at=row.heartbeat_at,
    )


def _need(row: Row[Any]) -> Need:
    return Need(
        job=row.id,
        device=row.device,
        least_nbytes=row.needed_nbytes or 0,
        likely_least_nbytes=row.likely_nbytes or 0,
        wanted_nbytes=row.wanted_nbytes,
        caches=frozenset(row.caches or ()),
        begun=row.begun,
        takes_place=row.kind not in _WITHOUT_PLACE,
        always_comes=row.kind in _ALWAYS_COME,
        line_of=row.line_of,
        meant_for=row.meant_for,
    )
