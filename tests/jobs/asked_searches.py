"""What a user searches for, and what comes of it."""

from psycopg.types.json import Jsonb


class Searches:
    """What the user `anna` asks for, and what comes of it."""

    def __init__(self, database):
        self.database = database

    def submit(self, space, **arguments):
        """Call tensile_submit_search as anna; return the search."""
        arguments = {"architecture": "mlp", "source": "points", "space": Jsonb(space)} | arguments
        with self.database.connect() as connection:
            return connection.execute(*call("tensile_submit_search", arguments)).fetchone()[0]

    def trials(self, search):
        return self.database.execute(
            "SELECT * FROM tensile.trials WHERE search_id = %s ORDER BY trial", search
        )

    def row(self, search):
        return self.database.execute("SELECT * FROM tensile.searches WHERE search_id = %s", search)[0]

    def models(self):
        return self.database.execute("SELECT name, version, job_id FROM tensile.models ORDER BY id")


def call(function, arguments):
    """Return a call by named arguments, and the values for its placeholders."""
    named = ", ".join(f"{name} => %s" for name in arguments)
    return f"SELECT * FROM {function}({named})", list(arguments.values())
