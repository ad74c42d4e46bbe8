"""Small networks for the policies that know layers, with ATen's names, to follow by hand."""

from tensile_db.graph import Phase, Role, StepGraph
from tests.graphs.hand_made import OpRow, graph_of

FORWARD, BACKWARD, OPTIMIZER = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER


def convolutional(map_nbytes: int = 100) -> StepGraph:
    """Return a step of four convolutions, each followed by a batch norm and relu_, and of a classifier.

    Ops: 0 load_batch; of layer k = 0..3: 1+3k convolution, 2+3k native_batch_norm, 3+3k relu_; 13 addmm, 14
    loss; 15 loss's backward, 16 mm; of layer k = 3..0: 17+3(3-k) threshold_backward, 18+..
    native_batch_norm_backward, 19+.. convolution_backward; 29 tensile.report. Tensors: 0 input, 1 loss; of
    layer k: 2+3k convolved, 3+3k normalized, 4+3k statistics (2 B); 14 logits; then gradients, a feature map
    or less each.  Nothing is persistent.
    """
    tensors = [(map_nbytes, Role.INPUT), (1, Role.OUTPUT)]
    ops: list[OpRow] = [("tensile.load_batch", FORWARD, [], [0], False)]
    below = 0
    for layer in range(4):
        convolved, normalized, statistics = 2 + 3 * layer, 3 + 3 * layer, 4 + 3 * layer
        tensors += [(map_nbytes, Role.ACTIVATION), (map_nbytes, Role.ACTIVATION), (2, Role.ACTIVATION)]
        ops += [
            ("aten.convolution.default", FORWARD, [below], [convolved], True),
            ("aten.native_batch_norm.default", FORWARD, [convolved], [normalized, statistics], True),
            ("aten.relu_.default", FORWARD, [normalized], [normalized], True),
        ]
        below = normalized
    tensors += [(1, Role.ACTIVATION)] * 2 + [(map_nbytes, Role.ACTIVATION)]
    ops += [
        ("aten.addmm.default", FORWARD, [below], [14], True),
        ("aten.nll_loss_forward.default", FORWARD, [14], [1], True),
        ("aten.nll_loss_backward.default", BACKWARD, [14], [15], True),
        ("aten.mm.default", BACKWARD, [15], [16], True),
    ]
    gradient = 16
    for layer in reversed(range(4)):
        convolved, normalized, statistics = 2 + 3 * layer, 3 + 3 * layer, 4 + 3 * layer
        before = normalized - 3 if layer else 0
        tensors += [(map_nbytes, Role.ACTIVATION)] * 3
        ops += [
            ("aten.threshold_backward.default", BACKWARD, [normalized, gradient], [gradient + 1], True),
            (
                "aten.native_batch_norm_backward.default",
                BACKWARD,
                [convolved, statistics, gradient + 1],
                [gradient + 2],
                True,
            ),
            ("aten.convolution_backward.default", BACKWARD, [before, gradient + 2], [gradient + 3], True),
        ]
        gradient += 3
    ops.append(("tensile.report", OPTIMIZER, [1], [], False))
    return graph_of(tensors, ops)


def plain(layers: int) -> StepGraph:
    """Return a step of equal layers that each read the one before: op and tensor k + 1 of layer k, input 0.

    Op `layers` + 1 is the loss; layer k's backward op is number 2 * `layers` + 1 - k and reads tensors k and
    k + 1.
    """
    activation = (100, Role.ACTIVATION)
    tensors = [(10, Role.INPUT), *(activation,) * layers, (1, Role.OUTPUT), activation]
    ops: list[OpRow] = [("tensile.load_batch", FORWARD, [], [0], False)]
    ops += [("layer", FORWARD, [k], [k + 1], True) for k in range(layers)]
    loss, gradient = layers + 1, layers + 2
    ops.append(("loss", FORWARD, [layers], [loss, gradient], True))
    for k in reversed(range(layers)):
        tensors.append(activation)
        ops.append(("layer_backward", BACKWARD, [k, k + 1, gradient], [gradient + 1], True))
        gradient += 1
    ops.append(("tensile.report", OPTIMIZER, [loss], [], False))
    return graph_of(tensors, ops)
