"""What of the rows that are asked for is in a worker's hands.  Not safe for threads: its owner has a lock.

A model's share of it is bounded, for any role that may use a model can write as many requests for it as it
likes, and they are to fill neither the worker's memory nor the way of the other models' rows.
"""

from collections import defaultdict

_MOST_ROWS = 256
_MOST_NBYTES = 64 * 2**20


class UnderWay:
    """Requests that were read and are not answered, by model."""

    def __init__(self, *, most_rows: int = _MOST_ROWS, most_nbytes: int = _MOST_NBYTES) -> None:
        """Bounds of each model; of a row larger than most_nbytes there is one at a time."""
        self._most_rows = most_rows
        self._most_nbytes = most_nbytes
        self._model_of: dict[int, int] = {}
        #: Bytes by model and request.
        self._nbytes: defaultdict[int, dict[int, int]] = defaultdict(dict)

    def __contains__(self, request: int) -> bool:
        return request in self._model_of

    def of(self, model: int) -> list[int]:
        """Return a model's."""
        return list(self._nbytes[model]) if model in self._nbytes else []

    def add(self, request: int, *, model: int, nbytes: int) -> None:
        """Take one in."""
        self._model_of[request] = model
        self._nbytes[model][request] = nbytes

    def done(self, request: int) -> None:
        """One is answered, if it is known at all."""
        model = self._model_of.pop(request, None)
        if model is not None:
            del self._nbytes[model][request]

    def forget(self, model: int) -> None:
        """A model's are somebody else's from now on."""
        for request in self._nbytes.pop(model, {}):
            del self._model_of[request]

    def room(self, model: int) -> tuple[int, int]:
        """Return how many rows more, beginning within how many bytes, may come; nothing of either: (0, 0)."""
        sizes = self._nbytes.get(model, {})
        rows = self._most_rows - len(sizes)
        nbytes = self._most_nbytes - sum(sizes.values())
        return (rows, nbytes) if rows > 0 and nbytes > 0 else (0, 0)
