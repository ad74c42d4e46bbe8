"""The host's part in a batch of images: normalised there, and left as bytes for the step to normalise.

    python -m bench.batches

Both are made of the same rows of an array in memory, by one thread in turns; times are processor times.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.results import median_ratio, provenance, table, write
from tensile_db.data.dataset import Features
from tensile_db.data.feature_spec import FeatureSpec

#: Rows of a batch, channels stored and of the network, height and width.
BATCHES = ((32, 1, 3, 28), (16, 3, 3, 224), (64, 3, 3, 224), (16, 3, 3, 299))
#: Batches' rows in the array that they are drawn from.
_DRAWN_FROM = 4


def main() -> None:
    """Make the batches both ways in turns, print and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    found = [_compare(*batch, options.rounds) for batch in BATCHES]
    head = ["rows", "pixels", "normalised ms", "bytes ms", "bytes : normalised", "MB", "MB as bytes"]
    lines: list[list[object]] = [
        [
            entry["rows"],
            f"{entry['stored_channels']} x {entry['side']} x {entry['side']}",
            f"{median(entry['normalised_ns']) / 1e6:.2f}",
            f"{median(entry['bytes_ns']) / 1e6:.2f}",
            f"{entry['ratio']:.3f}",
            f"{entry['normalised_nbytes'] / 1e6:.2f}",
            f"{entry['bytes_nbytes'] / 1e6:.2f}",
        ]
        for entry in found
    ]
    print(table(head, lines))
    print(write("batches", provenance("bench.batches") | {"options": vars(options), "batches": found}))


def _compare(rows: int, stored: int, channels: int, side: int, rounds: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    spec = FeatureSpec(
        kind="image",
        columns=("image",),
        source_shape=(side, side, stored),
        raw=True,
        size=(side, side),
        channels=channels,
        mean=(120.0,) * stored,
        scale=(60.0,) * stored,
    )
    pixels = random.integers(0, 256, (_DRAWN_FROM * rows, stored, side, side), dtype=np.uint8)
    features = Features(values=pixels, spec=spec)
    normalised_ns, bytes_ns = [], []
    for _ in range(rounds + 1):
        drawn = random.choice(len(features), rows, replace=False)
        normalised_ns.append(_took_ns(features.normalised, drawn))
        bytes_ns.append(_took_ns(features.batch, drawn))
    # The first ones find memory that was never used.
    normalised_ns, bytes_ns = normalised_ns[1:], bytes_ns[1:]
    return {
        "rows": rows,
        "stored_channels": stored,
        "side": side,
        "normalised_ns": normalised_ns,
        "bytes_ns": bytes_ns,
        "ratio": median_ratio(bytes_ns, normalised_ns),
        "normalised_nbytes": features.normalised(drawn).nbytes,
        "bytes_nbytes": sum(array.nbytes for array in features.batch(drawn)),
    }


def _took_ns(make: Callable[[npt.NDArray[np.int64]], object], rows: npt.NDArray[np.int64]) -> int:
    begin_ns = time.process_time_ns()
    make(rows)
    return time.process_time_ns() - begin_ns


if __name__ == "__main__":
    main()
