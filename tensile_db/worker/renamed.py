"""Notices roles that have got another name, so that the catalog has the one that they have.

By their names a restore in another cluster finds owners, and PostgreSQL reports to nobody that a role is
renamed.
"""

import logging
import time
from collections.abc import Callable, Mapping

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from tensile_db.catalog import homes

log = logging.getLogger(__name__)

#: All rows are looked at where a role has been renamed; to see whether one was takes a look at all roles.
_EVERY_S = 600.0


class RenamedRoles:
    """Looks for roles with new names, at once and then every ten minutes at most."""

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._looked_at: float | None = None
        #: Number -> name; None: not looked at yet.
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
                if known is None or any(known.get(role, name) != name for role, name in names.items()):
                    refreshed = homes.refresh_names(conn)
                    if refreshed:
                        log.info("%s rows have the present name of their owner now", refreshed)
        except DBAPIError as error:
            log.warning("names of roles could not be looked at: %s", error.orig)
            return
        # What others had locked then keeps its name until the next role is renamed, or worker started.
        self._known = names
