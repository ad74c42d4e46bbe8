"""A worker's connections, and those to the catalog as SQLAlchemy engines over psycopg 3."""

import json
import os
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import set_json_dumps
from sqlalchemy import Connection, Engine, create_engine

T = TypeVar("T")

#: Of every connection of a worker's, whatever is set for its database or role: how values are written and
#: read, that it may write at all, and that it may take its time.  Rows are read with all digits.
SETTINGS = (
    "-c DateStyle=ISO -c IntervalStyle=postgres -c extra_float_digits=1 -c row_security=on -c array_nulls=on"
    " -c default_transaction_read_only=off -c default_transaction_isolation=read\\ committed"
    " -c idle_session_timeout=0 -c statement_timeout=0 -c idle_in_transaction_session_timeout=0"
)
#: By this a worker tells that its settings have come through; PostgreSQL takes any name with a dot in it.
OWN_SESSION = "tensile_db.session"
#: The catalog's are qualified by their names; a search path is the role's to set.
CATALOG_SETTINGS = f"{SETTINGS} -c search_path=pg_catalog -c lock_timeout=30s -c {OWN_SESSION}=own"
#: Python's, whatever the database's is.
ENCODING = "UTF8"

#: What a dead network takes to be noticed; a lease outlives it.
_CONNECT_TIMEOUT_S = 10
_TRANSACTION_TIMEOUT_SINCE = 170000


def connect(
    dsn: str, *, application_name: str, settings: str = CATALOG_SETTINGS, autocommit: bool = False
) -> psycopg.Connection:
    """Connect a worker, by a libpq connection string or URI, to a server that may be written.

    Of several hosts to the one that may; a standby is waited for as if it were away.  Whoever names
    target_session_attrs, in the string or the environment, knows better; in a service file it is not seen.
    """
    if "target_session_attrs" not in conninfo_to_dict(dsn) and "PGTARGETSESSIONATTRS" not in os.environ:
        dsn = make_conninfo(dsn, target_session_attrs="read-write")
    connection = psycopg.connect(
        dsn,
        autocommit=True,
        application_name=application_name,
        connect_timeout=_CONNECT_TIMEOUT_S,
        client_encoding=ENCODING,
        options=settings,
    )
    try:
        # A database in SQL_ASCII takes texts as they are, and no escapes in JSON.
        set_json_dumps(partial(json.dumps, ensure_ascii=False), connection)
        if connection.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
            # Older servers refuse a connection with a setting that they do not know.
            connection.execute("SET transaction_timeout = 0")
        connection.autocommit = autocommit
    except psycopg.Error:
        connection.close()
        raise
    return connection


def make_engine(dsn: str, *, application_name: str, pool_size: int) -> Engine:
    """Return an engine for a libpq connection string or URI; connects nothing yet.

    A pooled connection is tried before it is handed out, so that a restarted server costs no job its life.
    Beyond the pool's size connections are made as they are asked for: nobody waits for another's.
    """
    return create_engine(
        "postgresql+psycopg://",
        creator=lambda: connect(dsn, application_name=application_name),
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
