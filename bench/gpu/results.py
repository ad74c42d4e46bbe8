"""A section's results, written whenever something is added: what kills a section later loses nothing."""

import json
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Results:
    """One section's document, and how much time the section has left."""

    def __init__(
        self,
        path: Path,
        *,
        section: str,
        limit_s: float,
        facts: dict[str, Any],
        began_s: float | None = None,
    ) -> None:
        """facts: what the document says of machine and versions; began_s: when, by time.monotonic(); now."""
        self.path = path
        self._began_s = time.monotonic() if began_s is None else began_s
        self._limit_s = limit_s
        self._document: dict[str, Any] = {
            "section": section,
            "ended": False,
            "limit_s": limit_s,
            "took_s": 0.0,
            **facts,
            "entries": [],
            "failures": [],
            "not_reached": [],
        }
        self.write()

    @property
    def left_s(self) -> float:
        """What is left of the section's time."""
        return self._limit_s - self.spent_s

    @property
    def spent_s(self) -> float:
        """The section's time so far."""
        return time.monotonic() - self._began_s

    def note(self, **facts: Any) -> None:
        """Add facts to the document itself."""
        self._document.update(facts)
        self.write()

    def add(self, entry: dict[str, Any]) -> None:
        """Add an entry."""
        self._document["entries"].append(entry)
        print(f"{self.spent_s:.1f} s", json.dumps(entry)[:600], flush=True)
        self.write()

    def merge(self, part: dict[str, Any]) -> None:
        """Add what another process found, a document like this one."""
        for key in ("entries", "failures", "not_reached"):
            self._document[key] += part[key]
        self.write()

    def skip(self, name: str) -> None:
        """Note that there was no time for a piece of work."""
        self._document["not_reached"].append(name)
        self.write()

    def attempt(self, name: str, needs_s: float, work: Callable[[], Any]) -> Any:
        """Do a piece of work unless there is no time for it; what it raises is written down, and that is all.

        Returns what it returns, None where it failed or was not reached.
        """
        if self.left_s < needs_s:
            self.skip(name)
            return None
        try:
            return work()
        except Exception as error:  # noqa: BLE001  # one failure must not lose the others' results
            self._document["failures"].append(
                {
                    "name": name,
                    "error": f"{type(error).__name__}: {error}"[:2000],
                    "traceback": traceback.format_exc(limit=-12)[-6000:],
                }
            )
            print(f"FAILED {name}: {type(error).__name__}: {error}"[:1000], flush=True)
            self.write()
            return None

    @contextmanager
    def until_end(self) -> Any:
        """Mark the section as ended when the context does."""
        yield self
        self._document["ended"] = True
        self.write()

    def write(self) -> None:
        """Write the document, whole or not at all."""
        self._document["took_s"] = round(self.spent_s, 1)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self._document, indent=1) + "\n")
        partial.replace(self.path)
