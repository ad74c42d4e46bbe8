"""Several workers' claims on one database, without their threads."""

from dataclasses import replace

import pytest

from tensile_db.catalog import placements, workers
from tensile_db.worker.claims import Claims
from tests.fix_worker import DEVICE

MIB = 2**20


@pytest.fixture
def join(engine):
    """Register workers that are ready; return what claims for each."""

    def join(*, name="cpu", memory_nbytes=MIB, flops_per_s=1, lease_s=30.0, **terms):
        device = replace(DEVICE, name=name, memory_nbytes=memory_nbytes, flops_per_s=flops_per_s)
        with engine.begin() as conn:
            worker = workers.register(
                conn,
                host="here",
                pid=1,
                version="0",
                device=device,
                terms=workers.Terms(lease_s=lease_s, **terms),
            )
            workers.set_state(conn, worker, "ready")
        return Claims(engine=engine, worker=worker, device=device, lease_s=lease_s)

    return join


def live(engine):
    with engine.begin() as conn:
        return {found.offer.worker: found.offer for found in placements.live_workers(conn)}


def needs(engine, lease_s=30.0):
    with engine.begin() as conn:
        offers = [found.offer for found in placements.live_workers(conn)]
        return {need.job: need for need in placements.waiting(conn, offers, lease_s=lease_s)}


def take(claims, limit=16, held=()):
    return [row.id for row in claims.take(limit=limit, held=held)]
