"""A worker's side of one row's predictions, told what to answer, and sessions that wait meanwhile."""

import threading
import time
from contextlib import contextmanager

import psycopg
from psycopg import sql

from tests.fixtures.db import PlayedWorker


class Postman(PlayedWorker):
    """Answers requests as a worker does.

    answer: from a request's row to columns of its answer; None: leave it unanswered.
    """

    def __init__(self, site, answer):
        super().__init__(site)
        self.seen = []
        self._answer = answer

    def play(self):
        waiting = "SELECT * FROM tensile.serving_requests WHERE NOT answered AND id <> ALL (%s)"
        done = [request["id"] for request in self.seen]
        for request in self.connection.execute(waiting, [done]).fetchall():
            self.seen.append(request)
            answer = self._answer(request)
            if answer is not None:
                columns = sql.SQL(", ").join(
                    sql.SQL("{} = %s").format(sql.Identifier(name)) for name in answer
                )
                self.connection.execute(
                    sql.SQL("UPDATE tensile.serving_requests SET answered = true, {} WHERE id = %s").format(
                        columns
                    ),
                    [*answer.values(), request["id"]],
                )
        time.sleep(0.005)


def says(text):
    return lambda request: {"prediction": text}


def served(site):
    return site.execute("SELECT * FROM tensile.jobs WHERE kind = 'serve' ORDER BY id")


@contextmanager
def waiting_session(site, statement, role="alice"):
    """Run a statement in another session; give what becomes of it, to be joined."""
    outcome = {}

    def run():
        with site.connect(role) as connection:
            try:
                outcome["rows"] = connection.execute(statement).fetchall()
            except psycopg.Error as error:
                outcome["error"] = error

    thread = threading.Thread(target=run)
    thread.start()
    yield outcome
    thread.join(60)
    assert not thread.is_alive()
