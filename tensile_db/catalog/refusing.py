"""Why a server lets nobody in, by SQLSTATE.

psycopg passes on libpq's sentence for a connection that was not made, in the server's language, and no
SQLSTATE.  So the server is asked once more, and its answer read from libpq's trace.
"""

import os
import re
import select
import time

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo
from psycopg.pq.abc import PGconn

from tensile_db.catalog.engine import CATALOG_SETTINGS

UNAUTHENTICATED = "28P01"
#: Of a pooler that knows no startup option.
POOLED = "08P01"

_TIMEOUT_S = 10.0
#: A line of the trace (libpq's fe-trace.c): the severity, the SQLSTATE, and then what may be anything.
_ANSWER = re.compile(rb'^B\t\d+\tErrorResponse\t S "[^"]*" V "[^"]*" C "(\w{5})" ', re.MULTILINE)


def find_refusal(dsn: str) -> str | None:
    """Return the SQLSTATE with which a server refuses a connection; None where it does not, or none is told.

    None also for several hosts, of which others may be away and let us in later, and where libpq is too old
    to trace this (before 18).  Takes as long as a connection does, ten seconds at most.
    """
    # In memory alone: it may have the password in it.
    trace = os.memfd_create("tensile-trace")
    try:
        # Poolers refuse, or drop, what a worker's connections are made with.
        connection = pq.PGconn.connect_start(make_conninfo(dsn, options=CATALOG_SETTINGS).encode())
        try:
            # As libpq has them, of a service or of the environment too.
            used = {option.keyword: option.val or b"" for option in connection.info}
            if b"," in used[b"host"] + used[b"hostaddr"]:
                return None
            connection.trace(trace)
            connection.set_trace_flags(pq.Trace.SUPPRESS_TIMESTAMPS)
            status = _poll(connection)
            connection.untrace()
            if status is not pq.PollingStatus.FAILED:
                return None
            if connection.needs_password:
                return UNAUTHENTICATED
        finally:
            connection.finish()
        os.lseek(trace, 0, os.SEEK_SET)
        with open(trace, "rb", closefd=False) as file:
            answers = _ANSWER.findall(file.read())
    except psycopg.Error:
        return None
    finally:
        os.close(trace)
    # Several addresses of one name may have answered.
    return answers[0].decode() if len(set(answers)) == 1 else None


def _poll(connection: PGconn) -> pq.PollingStatus | None:
    """Carry the connecting on to its end; None if that does not come."""
    deadline = time.monotonic() + _TIMEOUT_S
    # As libpq wants it: before the first poll as if that had asked to write.
    wanted = pq.PollingStatus.WRITING
    while (left_s := deadline - time.monotonic()) > 0 and connection.status != pq.ConnStatus.BAD:
        reading, writing = (
            [connection.socket] if wanted is each else []
            for each in (pq.PollingStatus.READING, pq.PollingStatus.WRITING)
        )
        if any(select.select(reading, writing, [], left_s)[:2]):
            wanted = pq.PollingStatus(connection.connect_poll())
            if wanted not in (pq.PollingStatus.READING, pq.PollingStatus.WRITING):
                return wanted
    return None
