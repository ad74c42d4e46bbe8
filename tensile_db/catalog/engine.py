"""Connections to the catalog, as SQLAlchemy engines over psycopg 3."""

from collections.abc import Callable
from typing import TypeVar

import psycopg
from sqlalchemy import Connection, Engine, create_engine

T = TypeVar("T")

#: Of every connection of a worker's, whatever is set for its database or role: how values are written, and
#: and read, that it may write at all, and that it may wait for notifications.  Rows are read with all digits.
SETTINGS = (
    "-c DateStyle=ISO -c IntervalStyle=postgres -c extra_float_digits=1 -c row_security=on -c array_nulls=on"
    " -c default_transaction_read_only=off -c default_transaction_isolation=read\\ committed"
    " -c idle_session_timeout=0"
)
#: The catalog's are qualified by their names; a search path is the role's to set.
CATALOG_SETTINGS = f"{SETTINGS} -c search_path=pg_catalog -c lock_timeout=30s"
#: Python's, whatever the database's is.
ENCODING = "UTF8"

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
            client_encoding=ENCODING,
            options=CATALOG_SETTINGS,
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
