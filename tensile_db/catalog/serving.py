"""Requests for one row's prediction, read and answered.  The caller owns the transaction.

On psycopg's own connection, in its binary protocol: a request lives for some milliseconds.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import psycopg
from sqlalchemy import Connection, exists, select

from tensile_db.catalog import schema

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


_REQUESTS = (
    "SELECT id, model_id, form, wants_probabilities, features FROM tensile.serving_requests"
    " WHERE NOT answered"
)


def read(conn: psycopg.Connection, requests: Collection[int]) -> list[Request]:
    """Return those of these requests that wait for an answer, the oldest first."""
    return _read(conn, f"{_REQUESTS} AND id = ANY (%s) ORDER BY id", requests)


def read_waiting(conn: psycopg.Connection, models: Collection[int]) -> list[Request]:
    """Return all requests of these models that wait for an answer, the oldest first."""
    return _read(conn, f"{_REQUESTS} AND model_id = ANY (%s) ORDER BY id", models)


def answer(conn: psycopg.Connection, answers: Sequence[Answer]) -> None:
    """Write answers, where they are still waited for."""
    conn.execute(
        "UPDATE tensile.serving_requests r SET answered = true, prediction = a.prediction,"
        " probabilities = a.probabilities::jsonb, error_sqlstate = a.sqlstate, error_message = a.message,"
        " error_hint = a.hint"
        " FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[])"
        " AS a (id, prediction, probabilities, sqlstate, message, hint)"
        " WHERE r.id = a.id AND NOT r.answered",
        [
            [one.request for one in answers],
            [one.prediction for one in answers],
            [one.probabilities for one in answers],
            [one.sqlstate for one in answers],
            [one.message for one in answers],
            [one.hint for one in answers],
        ],
    )


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


def _read(conn: psycopg.Connection, query: str, among: Collection[int]) -> list[Request]:
    with conn.cursor(binary=True) as cursor:
        cursor.execute(query.encode(), [sorted(among)])
        return [
            Request(id=id, model=model, form=form, wants_probabilities=wants, features=features)
            for id, model, form, wants, features in cursor  # noqa: A001  # the column's name
        ]
