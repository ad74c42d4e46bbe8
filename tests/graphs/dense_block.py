"""A step through a dense block written by hand: each layer reads all feature maps before it, concatenated."""

from tensile_db.graph import Phase, Role
from tests.graphs.hand_made import graph_of

FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD


def dense_block(layers: int, *, map_nbytes: int = 100, wider: int = 4):
    """Return the graph; tensor i is feature map i, tensor layers + i the concatenation that layer i reads.

    Map 0 is the batch's, run through a layer of its own.  Each layer widens its input to `wider` maps before
    it makes its own; what it widens to is kept for the backward pass as the concatenation is.
    """
    maps = list(range(layers))
    joined = [layers + layer for layer in maps]
    wide = [2 * layers + layer for layer in maps]
    image, loss = 3 * layers, 3 * layers + 1
    gradient = [3 * layers + 2 + layer for layer in maps]
    tensors = [
        *((map_nbytes, Role.ACTIVATION) for _ in maps),
        *((map_nbytes * (layer + 1), Role.ACTIVATION) for layer in maps),
        *((map_nbytes * wider, Role.ACTIVATION) for _ in maps),
        (map_nbytes, Role.INPUT),
        (8, Role.OUTPUT),
        *((map_nbytes * (layer + 1), Role.ACTIVATION) for layer in maps),
    ]
    forward = []
    for layer in maps:
        forward += [
            ("cat", FORWARD, maps[: layer + 1], [joined[layer]], True),
            ("widen", FORWARD, [joined[layer]], [wide[layer]], True),
        ]
        if layer + 1 < layers:
            forward.append(("layer", FORWARD, [wide[layer]], [maps[layer + 1]], True))
    backward = []
    for layer in reversed(maps):
        above = [gradient[layer + 1]] if layer + 1 < layers else [loss]
        backward += [
            ("layer_backward", BACKWARD, [joined[layer], wide[layer], *above], [gradient[layer]], False)
        ]
    return graph_of(
        tensors,
        [
            ("tensile.load_batch", FORWARD, [], [image], False),
            ("first_layer", FORWARD, [image], [maps[0]], True),
            *forward,
            ("loss", FORWARD, [wide[-1]], [loss], False),
            *backward,
        ],
    )
