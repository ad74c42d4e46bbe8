"""Requests for one row's prediction, read and answered.  The caller owns the transaction.

On psycopg's own connection, in its binary protocol: a request lives for some milliseconds.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import psycopg
from sqlalchemy import Connection, exists, select

from tensile_db.catalog import schema
from tensile_db.errors import TensileError

#: Told, with the request's id and its model's, of each request, and again of one that waits for long.
CHANNEL = "tensile_serving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A row that a session wants predicted."""

    id: int
    model: int
    #: How the features are given: see data/one_row.py.
    form: str
    wants_probabilities: bool
    features: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a session gets for its request: a prediction, or an error."""

    request: int
    #: None: a feature was NULL, or there is an error.
    prediction: str | None = None
    #: JSON, of each class; None where they were not asked for.
    probabilities: str | None = None
    sqlstate: str | None = None
    message: str | None = None
    hint: str | None = None

    @classmethod
    def of_error(cls, request: int, error: TensileError) -> "Answer":
        """Return the answer to a request that cannot be predicted."""
        return cls(request=request, sqlstate=error.sqlstate, message=error.message, hint=error.hint or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A request that was not read: its features are too many bytes for now, or for ever."""

    id: int
    model: int
    nbytes: int


#: A larger row is refused: the worker's memory is for many.
LARGEST_NBYTES = 128 * 2**20

#: Of each model as many rows as there is room for, the oldest first; the features of those alone that begin
#: within its bytes.  octet_length() does not read what is stored aside.
_READ = """
SELECT id, model_id, form, wants_probabilities, octet_length(features),
       CASE WHEN octet_length(features) <= %(largest)s AND before_it < nbytes THEN features END
FROM (
    SELECT r.*, m.nbytes,
           sum(octet_length(r.features)) OVER (PARTITION BY m.model ORDER BY r.id) - octet_length(r.features)
           AS before_it
    FROM unnest(%(models)s::bigint[], %(rows)s::bigint[], %(nbytes)s::bigint[]) AS m (model, rows, nbytes),
         LATERAL (SELECT * FROM tensile.serving_requests q
                  WHERE q.model_id = m.model AND NOT q.answered AND {which} ORDER BY q.id LIMIT m.rows) r
) found ORDER BY id
"""


def read(
    conn: psycopg.Connection, requests: Collection[int], *, room: Mapping[int, tuple[int, int]]
) -> tuple[list[Request], list[Left]]:
    """Return those of these requests that wait for an answer, the oldest first.

    room: by model, how many rows, and bytes within which the last of them begins; others are left out.
    """
    return _read(conn, "q.id = ANY (%(requests)s)", requests, room)


def read_waiting(
    conn: psycopg.Connection, *, without: Collection[int], room: Mapping[int, tuple[int, int]]
) -> tuple[list[Request], list[Left]]:
    """Return the requests that wait for an answer and are none of `without`; else as `read`."""
    return _read(conn, "q.id <> ALL (%(requests)s)", without, room)


def answer(conn: psycopg.Connection, answers: Sequence[Answer]) -> set[int]:
    """Write answers, where they are still waited for.

    Returns the requests whose rows somebody has locked, for which nobody waits: try theirs again later.
    """
    asked = [one.request for one in answers]
    written = conn.execute(
        "WITH free AS (SELECT id FROM tensile.serving_requests WHERE id = ANY (%s) AND NOT answered"
        " FOR NO KEY UPDATE SKIP LOCKED)"
        " UPDATE tensile.serving_requests r SET answered = true, prediction = a.prediction,"
        " probabilities = a.probabilities::jsonb, error_sqlstate = a.sqlstate, error_message = a.message,"
        " error_hint = a.hint"
        " FROM free JOIN unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[])"
        " AS a (id, prediction, probabilities, sqlstate, message, hint) ON a.id = free.id"
        " WHERE r.id = a.id",
        [
            asked,
            asked,
            [one.prediction for one in answers],
            [one.probabilities for one in answers],
            [one.sqlstate for one in answers],
            [one.message for one in answers],
            [one.hint for one in answers],
        ],
    ).rowcount
    if written == len(answers):
        return set()
    query = "SELECT id FROM tensile.serving_requests WHERE id = ANY (%s) AND NOT answered"
    return {id for (id,) in conn.execute(query, [asked])}  # noqa: A001  # the column's name


def is_waited_for(conn: Connection, model: int) -> bool:
    """Whether a request of the model waits for an answer."""
    requests = schema.serving_requests.c
    waiting = exists().where(requests.model_id == model, ~requests.answered)
    return bool(conn.execute(select(waiting)).scalar_one())


def delete_abandoned(conn: psycopg.Connection) -> int:
    """Take away the requests of sessions that are gone; return how many."""
    row = conn.execute("SELECT tensile.delete_abandoned_requests()").fetchone()
    assert row is not None
    return int(row[0])


def _read(
    conn: psycopg.Connection, which: str, requests: Collection[int], room: Mapping[int, tuple[int, int]]
) -> tuple[list[Request], list[Left]]:
    arguments = {
        "models": list(room),
        "rows": [rows for rows, _ in room.values()],
        "nbytes": [nbytes for _, nbytes in room.values()],
        "largest": LARGEST_NBYTES,
        "requests": sorted(requests),
    }
    found: list[Request] = []
    left: list[Left] = []
    with conn.cursor(binary=True) as cursor:
        cursor.execute(_READ.format(which=which).encode(), arguments)
        for id, model, form, wants, nbytes, features in cursor:  # noqa: A001  # the column's name
            if features is None:
                left.append(Left(id=id, model=model, nbytes=nbytes))
            else:
                found.append(
                    Request(id=id, model=model, form=form, wants_probabilities=wants, features=features)
                )
    return found, left
