"""The different texts of a column, found without an object per row."""

import numpy as np
import numpy.typing as npt

from tensile_db.data.columns import Variable

#: Texts are padded to the longest of so many: who has texts refuses long ones first, or shortens them.
_TEXTS_AT_ONCE = 16_384


def first_longer(texts: Variable, nbytes: int) -> int | None:
    """Return the first row whose text has more bytes than that; None where none has."""
    longer = np.flatnonzero(np.diff(texts.offsets) > nbytes)
    return int(longer[0]) if len(longer) else None


def shortened(texts: Variable, nbytes: int) -> Variable:
    """Return the texts, longer ones cut to a byte more than that, so that they are still longer."""
    lengths = np.diff(texts.offsets)
    if not len(lengths) or lengths.max() <= nbytes + 1:
        return texts
    cut = np.minimum(lengths, nbytes + 1)
    whole = np.ascontiguousarray(texts.data).data
    parts = [
        whole[begin : begin + length]
        for begin, length in zip(texts.offsets[:-1].tolist(), cut.tolist(), strict=True)
    ]
    offsets = np.concatenate([[0], np.cumsum(cut)]).astype(np.int64)
    return Variable(data=np.frombuffer(b"".join(parts), np.uint8), offsets=offsets)


def unique_texts(texts: Variable) -> tuple[list[bytes], npt.NDArray[np.int64]]:
    """Return the different texts, sorted, and for each row which it holds, int64 [rows].

    UTF-8's order of bytes is that of code points.
    """
    number_of: dict[bytes, int] = {}
    numbers = np.empty(len(texts), np.int64)
    for begin in range(0, len(texts), _TEXTS_AT_ONCE):
        offsets = texts.offsets[begin : begin + _TEXTS_AT_ONCE + 1]
        padded = _padded(texts.data[offsets[0] : offsets[-1]], np.diff(offsets))
        unique, inverse = np.unique(padded, return_inverse=True)
        met = [number_of.setdefault(text, len(number_of)) for text in unique.tolist()]
        numbers[begin : begin + _TEXTS_AT_ONCE] = np.array(met, np.int64)[inverse.reshape(-1)]
    place_of = {text: place for place, text in enumerate(sorted(number_of))}
    places = np.array([place_of[text] for text in number_of], np.int64)
    return list(place_of), places[numbers] if len(texts) else numbers


def _padded(data: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.bytes_]:
    """Return texts as bytes of one width, padded with zeros; PostgreSQL's texts hold no zero byte."""
    width = max(int(lengths.max()), 1)
    padded = np.zeros((len(lengths), width), np.uint8)
    padded[np.arange(width) < lengths[:, None]] = data
    return padded.view(f"S{width}").reshape(-1)
