"""Connections to the catalog, as SQLAlchemy engines over psycopg 3."""

from collections.abc import Callable
from typing import TypeVar

import psycopg
from sqlalchemy import Connection, Engine, create_engine

T = TypeVar("T")

#: What a dead network takes to be noticed; a lease outlives it.
_CONNECT_TIMEOUT_S = 10


def make_engine(dsn: str, *, application_name: str, pool_size: int) -> Engine:
    """Return an engine for a libpq connection string or URI; connects nothing yet.

    A pooled connection is tried before it is handed out, so that a restarted server costs no job its life.
    Beyond the pool's size connections are made as they are asked for: nobody waits for another's.
    """

    def connect() -> psycopg.Connection:
        return psycopg.connect(
            dsn,
            application_name=application_name,
            connect_timeout=_CONNECT_TIMEOUT_S,
            # A search path is the role's to set; the catalog's names are always qualified.
            options="-c search_path=pg_catalog -c lock_timeout=30s",
        )

    return create_engine(
        "postgresql+psycopg://",
        creator=connect,
        pool_size=pool_size,
        max_overflow=-1,
        pool_pre_ping=True,
        # Parameters are images and weights: of no use in an error's text.
        hide_parameters=True,
    )


def in_transaction(engine: Engine, work: Callable[[Connection], T]) -> T:
    """Carry `work` out in a transaction of its own, and return its result."""
    with engine.begin() as conn:
        return work(conn)
