"""Workloads of other architectures than the benchmarks': rows of a shape of their own, and 1,000 classes.

Source: ours.
"""

from functools import partial

import torch
from torch import nn

from tensile_db.bench.networks.workloads import CLASSES, WORKLOADS, Workload
from tensile_db.capture.networks import architectures
from tensile_db.errors import InvalidRequest, UnknownName

#: Columns, where a network takes such.
_FEATURES = 16
#: Larger than any network's own images, to which they are cut down.
_LARGEST = (2**16, 2**16)


def row_shape(architecture: str) -> tuple[int, ...]:
    """Return the shape of one row that an architecture is planned for where nobody says another.

    Raises UnknownName.
    """
    if not architectures.resolve(architecture).takes_images:
        return (_FEATURES,)
    channels = architectures.default_channels(architecture, 3)
    return (channels, *architectures.default_image_size(architecture, _LARGEST))


def architecture_workload(name: str) -> Workload:
    """Return the training of an architecture.

    Raises UnknownName for a name that is neither an architecture's nor a workload's, InvalidRequest for a
    package's.
    """
    try:
        kind = architectures.resolve(name).kind
    except UnknownName as error:
        raise UnknownName("network", name, {*WORKLOADS, *error.known}) from None
    if kind == "package":
        raise InvalidRequest(
            f'architecture "{name}" is a package\'s, which does not say what rows it takes',
            hint="Write a function that builds it for some, and give module:function;"
            ' docs/planner/your_own.md, "A network of your own", has one.',
        )
    shape = row_shape(name)
    build = partial(architectures.build, name, num_outputs=CLASSES, input_shape=shape, seed=0)
    build_empty = partial(architectures.build_empty, name, num_outputs=CLASSES, input_shape=shape)

    def made(_batch: int, _scale: int) -> nn.Module:
        if torch.get_default_device().type == "meta" and (empty := build_empty()) is not None:
            return empty
        with torch.device("cpu"):
            return build()

    return Workload(name=name, title=name, row_shape=shape, build=made, scales=False)
