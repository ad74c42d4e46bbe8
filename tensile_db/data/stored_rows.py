"""The rows that a job has read, in files of its own: a folder with a file or two for each column.

Written beside and renamed when complete, so that a folder of this name is a whole one, also after a crash; a
later attempt at the job reads the same rows from it.  Mapped, not loaded: rows may be more than memory.
"""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tensile_db.data.columns import Column, Form, Variable, tid_texts
from tensile_db.data.copy_binary import Values
from tensile_db.errors import QuotaExceeded, format_nbytes

FORMAT = 1
_META = "rows.json"


@dataclass(frozen=True, kw_only=True)
class StoredRows:
    """Columns of rows, and what names each row."""

    count: int
    #: In the order in which they were asked for.
    values: tuple[Values, ...]
    #: Says whether another reading brought the same: hexadecimal, over all that was read, in order.
    digest: str

    def key(self, column: int, row: int) -> str:
        """Return a value of a key column as text."""
        return key_texts(self.values[column], range(row, row + 1))[0]


def key_texts(values: Values, rows: range) -> list[str]:
    """Return values of a key column as text: numbers, texts, or (block,offset) of a ctid."""
    if isinstance(values, Variable):
        return [values[row].decode() for row in rows]
    part = values[rows.start : rows.stop]
    return tid_texts(part) if part.dtype.kind == "V" else [str(value) for value in part.tolist()]


def open_rows(folder: Path) -> StoredRows | None:
    """Return the rows in a folder, or None where there is no complete one."""
    meta = folder / _META
    if not meta.exists():
        return None
    data = json.loads(meta.read_text())
    if data["format"] != FORMAT:
        return None
    values = tuple(_open(folder, place, entry) for place, entry in enumerate(data["columns"]))
    return StoredRows(count=data["count"], values=values, digest=data["digest"])


class RowsWriter:
    """Appends blocks of rows; `finish` makes the folder."""

    def __init__(self, folder: Path, columns: Sequence[Column], max_nbytes: int | None) -> None:
        """max_nbytes: on disk; None: no limit."""
        self._folder = folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own: an attempt that was taken for dead may still be writing.
        self._beside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
        self._columns = tuple(columns)
        self._max_nbytes = max_nbytes
        self._files: list[IO[bytes]] = [
            (self._beside / f"{place}.values").open("wb") for place in range(len(columns))
        ]
        self._offsets: list[list[npt.NDArray[np.int64]]] = [[np.zeros(1, np.int64)] for _ in columns]
        self._shapes: list[tuple[int, ...]] = [()] * len(columns)
        self._digest = blake2b(digest_size=16)
        self._nbytes = 0
        self.count = 0

    def append(self, values: Sequence[Values]) -> None:
        """Add rows.  Raises QuotaExceeded where they are more than may lie on disk."""
        self.count += len(values[0])
        for place, column in enumerate(values):
            if isinstance(column, Variable):
                data: npt.NDArray[Any] = column.data
                self._offsets[place].append(column.offsets[1:] + self._offsets[place][-1][-1])
                self._digest.update(np.diff(column.offsets).tobytes())
            else:
                data = column
                self._shapes[place] = column.shape[1:]
            part = np.ascontiguousarray(data)
            self._files[place].write(part.data if part.dtype.kind != "V" else part.tobytes())
            self._digest.update(part.view(np.uint8).reshape(-1).data if part.nbytes else b"")
            self._nbytes += part.nbytes
        if self._max_nbytes is not None and self._nbytes > self._max_nbytes:
            raise QuotaExceeded(
                f"the rows take more than the {format_nbytes(self._max_nbytes)} that a job may cache",
                hint="Train on fewer rows by a view, or give the worker a larger cache.",
            )

    def finish(self) -> StoredRows:
        """Make the folder, in the place of one that may be there, and open it."""
        entries = []
        for place, column in enumerate(self._columns):
            self._files[place].close()
            if column.form in (Form.BYTES, Form.TEXT):
                np.concatenate(self._offsets[place]).tofile(self._beside / f"{place}.offsets")
            entries.append(
                {
                    "variable": column.form in (Form.BYTES, Form.TEXT),
                    "dtype": column.dtype.str if column.wire else "|u1",
                    "shape": self._shapes[place],
                }
            )
        meta = {"format": FORMAT, "count": self.count, "digest": self._digest.hexdigest(), "columns": entries}
        (self._beside / _META).write_text(json.dumps(meta))
        shutil.rmtree(self._folder, ignore_errors=True)
        self._beside.rename(self._folder)
        stored = open_rows(self._folder)
        assert stored is not None, "it was written a moment ago"
        return stored

    def abandon(self) -> None:
        """Remove what was written."""
        for file in self._files:
            with contextlib.suppress(OSError):  # what is still buffered may find the disk full
                file.close()
        shutil.rmtree(self._beside, ignore_errors=True)


def _open(folder: Path, place: int, entry: dict[str, Any]) -> Values:
    data = _map(folder / f"{place}.values", np.dtype(entry["dtype"]))
    if entry["variable"]:
        return Variable(data=data, offsets=_map(folder / f"{place}.offsets", np.dtype(np.int64)))
    return data.reshape(-1, *entry["shape"]) if entry["shape"] else data


def _map(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    # An empty file cannot be mapped.
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)
