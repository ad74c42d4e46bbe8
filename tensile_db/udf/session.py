"""A backend's session as the other modules see it: queries, messages, sleep.

Runs inside PostgreSQL; `plpy` is PL/Python's own module.  Every query runs as the caller.
"""

import re
from collections.abc import Callable
from typing import Any

from tensile_db.errors import Forbidden
from tensile_db.udf.sql_text import as_identifier

QUERY_CANCELED = "57014"

#: What decides how values are computed from times and texts, and how they are written: a view may give
#: another hour, and a label another text, to each session.
SETTINGS_OF_VALUES = (
    *("TimeZone", "timezone_abbreviations", "DateStyle", "IntervalStyle"),
    *("bytea_output", "extra_float_digits", "default_text_search_config"),
    *("lc_monetary", "lc_numeric", "lc_time"),
)

_QUOTED_NAME = re.compile('"((?:[^"]|"")*)"')


class _Undone(Exception):
    """Ends a subtransaction that is to leave nothing behind."""


class Session:
    """The session that called.  Raises plpy.SPIError where a query fails or the statement is cancelled."""

    def __init__(self, plpy: Any) -> None:
        self._plpy = plpy
        #: What a query raises that fails, and whatever is under way when the statement is cancelled.
        self.sql_error: type[Exception] = plpy.SPIError

    def rows(self, query: str, **values: tuple[str, Any]) -> list[dict[str, Any]]:
        """Run a query and return its rows by column.

        values: name -> (SQL type, value); `{name}` stands for it in the query.
        """
        text = query.format(**{name: f"${place}" for place, name in enumerate(values, 1)})
        plan = self._plpy.prepare(in_ascii(text), [kind for kind, _ in values.values()])
        return [dict(row) for row in self._plpy.execute(plan, [value for _, value in values.values()])]

    def row(self, query: str, **values: tuple[str, Any]) -> dict[str, Any] | None:
        """Return the only row, or None."""
        rows = self.rows(query, **values)
        return rows[0] if rows else None

    def value(self, query: str, **values: tuple[str, Any]) -> Any:
        """Return the only value of the only row, or None."""
        row = self.row(query, **values)
        return None if row is None else next(iter(row.values()))

    def settings_of_values(self) -> dict[str, str]:
        """Return SETTINGS_OF_VALUES as they are for the caller."""
        rows = self.rows(
            "SELECT name, pg_catalog.current_setting(name) AS value FROM pg_catalog.unnest({names}) name",
            names=("text[]", list(SETTINGS_OF_VALUES)),
        )
        return {row["name"]: row["value"] for row in rows}

    def exists(self, query: str) -> bool:
        """Whether a query returns a row; its text is taken as it is.  It locks nothing for longer."""
        found = False
        try:
            with self._plpy.subtransaction():
                found = len(self._plpy.execute(in_ascii(query), 1)) > 0
                raise _Undone
        except _Undone:
            return found

    def run(self, statement: str) -> None:
        """Run a statement that returns nothing."""
        self._plpy.execute(in_ascii(statement))

    def notice(self, message: str) -> None:
        """Tell the client at once."""
        self._tell(self._plpy.notice, message)

    def warning(self, message: str) -> None:
        """Warn the client at once."""
        self._tell(self._plpy.warning, message)

    def _tell(self, send: Callable[[str], None], message: str) -> None:
        try:
            send(message)
        except self._plpy.Error as error:
            # PL/Python makes this of a cancellation that arrives while a message is sent.
            cancelled: Any = self.sql_error(str(error))
            cancelled.sqlstate, cancelled.spidata = error.sqlstate, None
            raise cancelled from error

    def sleep(self, seconds: float) -> None:
        """Wait, while Ctrl-C and statement_timeout work: they raise plpy.SPIError with 57014."""
        self.value("SELECT pg_catalog.pg_sleep({seconds})", seconds=("float8", seconds))

    def quote_name(self, name: str) -> str:
        """Return an identifier as SQL."""
        if not name.isascii():
            # PL/Python's own takes it for a text in the database's encoding, and hands it UTF-8.
            return as_identifier(name)
        quoted: str = self._plpy.quote_ident(name)
        return quoted

    def sees_other_commits(self) -> bool:
        """Whether a new statement sees what others have committed meanwhile."""
        level: str = self.value("SELECT pg_catalog.current_setting('transaction_isolation')")
        return level in {"read committed", "read uncommitted"}

    def require_own_identity(
        self,
        doing: str = "wait for a job",
        hint: str = "Use tensile_submit there, whose job is the function owner's.",
    ) -> None:
        """Refuse to do something in what runs as another role, e.g. its SECURITY DEFINER function.

        It would be done as the session's role, while what is checked here is what the definer may do.
        Raises Forbidden.
        """
        row = self.row(
            "SELECT current_user::text AS acting, CASE pg_catalog.current_setting('role') WHEN 'none'"
            " THEN session_user::text ELSE pg_catalog.current_setting('role') END AS caller"
        )
        assert row is not None
        if row["acting"] != row["caller"]:
            raise Forbidden(
                f'role "{row["caller"]}" cannot {doing} while it acts as role "{row["acting"]}",'
                " in a SECURITY DEFINER function or a materialized view of that role",
                hint=hint,
            )


def in_ascii(query: str) -> str:
    """Return a query with the names in it written in ASCII, if it has others.

    PL/Python hands a query's text over in UTF-8, whatever the database's encoding; values it converts.
    """
    return query if query.isascii() else _QUOTED_NAME.sub(lambda quoted: _escaped(quoted[1]), query)


def _escaped(name: str) -> str:
    if name.isascii():
        return f'"{name}"'
    codes = (letter if letter.isascii() else f"\\+{ord(letter):06x}" for letter in name.replace("\\", "\\\\"))
    return f'U&"{"".join(codes)}"'
