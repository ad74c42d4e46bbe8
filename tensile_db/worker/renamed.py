"""Notices that roles were renamed or dropped, and brings the names of owners in the catalog up to date.

A restore in another cluster finds owners by these names, and PostgreSQL tells nobody of a renaming.
"""

import logging
import time
from collections.abc import Callable, Mapping

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from tensile_db.catalog import homes

log = logging.getLogger(__name__)

#: A look reads pg_roles; models, jobs and quotas are read only where a role has another name, or is gone.
_EVERY_S = 600.0


class RenamedRoles:
    """Looks for roles with new names, at once and then every ten minutes at most."""

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._looked_at: float | None = None
        #: Number -> name, where all rows have it; None where some may not.
        self._known: Mapping[int, str] | None = None

    def look(self) -> None:
        """Bring names in the catalog up to date, if it is time and any has changed."""
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at < _EVERY_S:
            return
        self._looked_at = now
        try:
            with self._engine.begin() as conn:
                names = homes.role_names(conn)
                known = self._known
                if known is None or any(names.get(role) != name for role, name in known.items()):
                    self._known = None
                    if homes.refresh_names(conn):
                        return
        except DBAPIError as error:
            log.warning("names of roles could not be looked at: %s", error.orig)
            return
        self._known = names
