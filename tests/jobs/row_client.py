"""A user whose sessions ask a real worker for rows, one at a time."""

import threading
from contextlib import contextmanager

import psycopg
import pytest

#: Some of the pictures, where each row waits for its turn.
FEW = "(SELECT * FROM pictures WHERE id <= 12) few"


class Client:
    """The user `anna`, whose models are "m", of points, and "pictures"."""

    def __init__(self, database):
        self.database = database

    def rows(self, query, *arguments):
        with self.database.connect() as connection:
            return connection.execute(query, arguments).fetchall()

    def value(self, query):
        ((value,),) = self.rows(query)
        return value

    def refusal(self, query):
        with pytest.raises(psycopg.Error) as caught:
            self.rows(query)
        return caught.value.sqlstate, caught.value.diag.message_primary, caught.value.diag.message_hint

    def served(self):
        return self.database.execute("SELECT * FROM tensile.jobs WHERE kind = 'serve' ORDER BY id")

    def table(self, model, source, source_column="prediction"):
        return dict(self.rows(f"SELECT row_key, {source_column} FROM tensile_predict('{model}', '{source}')"))

    def few(self, model):
        """What a table of few pictures gets of a model."""
        ids = {key for (key,) in self.rows(f"SELECT id::text FROM {FEW}")}
        return {key: text for key, text in self.table(model, "pictures").items() if key in ids}

    def ask_all(self, prediction, source):
        return dict(self.rows(f"SELECT id::text, {prediction} FROM {source}"))

    @contextmanager
    def asking(self, prediction, source, want):
        """Have a session ask for all rows again and again; whatever it gets must be what is wanted."""
        wrong, rounds, stop = [], [], threading.Event()

        def ask():
            try:
                with self.database.connect() as connection:
                    while not stop.is_set():
                        got = connection.execute(f"SELECT id::text, {prediction} FROM {source}").fetchall()
                        rounds.append(1)
                        if dict(got) != want:
                            wrong.append(got)
            except psycopg.Error as error:
                wrong.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield rounds
        finally:
            stop.set()
            thread.join(60)
        assert not thread.is_alive()
        assert wrong == []
