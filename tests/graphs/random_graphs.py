"""Random training-like graphs for property tests: forward chain with skips, backward, optimizer."""

from dataclasses import replace

from hypothesis import strategies as st

from tensile_db.graph import Code, Op, OpId, Phase, Role, StepGraph, Tensor, TensorId
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobRequest


class _Builder:
    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.ops: list[Op] = []

    def tensor(self, nbytes: int, role: Role, *, persistent: bool = False, dtype: str = "uint8") -> TensorId:
        tensor_id = TensorId(len(self.tensors))
        self.tensors.append(
            Tensor(
                id=tensor_id,
                nbytes=nbytes,
                dtype=dtype,
                shape=(nbytes,),
                role=role,
                persistent=persistent,
                name=f"t{tensor_id}",
            )
        )
        return tensor_id

    def op(
        self,
        target: str,
        phase: Phase,
        reads,
        writes,
        *,
        recomputable: bool = True,
        workspace: int = 0,
        unread=(),
        codes=(),
        shapes=(),
    ) -> None:
        self.ops.append(
            Op(
                id=OpId(len(self.ops)),
                target=target,
                phase=phase,
                reads=tuple(sorted(set(reads))),
                writes=tuple(sorted(set(writes))),
                workspace_nbytes=workspace,
                flops=0,
                moved_nbytes=sum(self.tensors[tensor].nbytes for tensor in (*reads, *writes)),
                recomputable=recomputable,
                unread=tuple(unread),
                codes=tuple(codes),
                shapes=tuple(shapes),
            )
        )


@st.composite
def training_graphs(draw, max_layers: int = 7) -> StepGraph:
    """Draw a step: layers with parameters, statistics, in-place activations, skips, random ops.

    Some gradients are made, and some parameters updated, in parts.  Some layers take the signs of what they
    made going backward, and some the shape of what they read.  Behind some is dropout, which may take the
    signs of what it drew going forward, too.
    """
    build = _Builder()
    size = st.integers(1, 60)
    layers = draw(st.integers(1, max_layers))
    weight = size | st.integers(60, 240)
    parameters = [build.tensor(draw(weight), Role.PARAMETER, persistent=True) for _ in range(layers)]
    statistics = [build.tensor(draw(st.integers(1, 4)), Role.BUFFER, persistent=True) for _ in range(layers)]
    parts = [draw(st.sampled_from([1, 1, 2, 3])) for _ in range(layers)]
    slots = [
        [
            build.tensor(-(-build.tensors[parameter].nbytes // count), Role.OPTIMIZER_STATE, persistent=True)
            for _ in range(count)
        ]
        for parameter, count in zip(parameters, parts, strict=True)
    ]
    value = build.tensor(draw(size), Role.INPUT)
    build.op("tensile.load_batch", Phase.FORWARD, (), (value,), recomputable=False)
    values, layer_of, masks = [value], [], []
    for layer in range(layers):
        made = build.tensor(draw(size), Role.ACTIVATION, dtype="bool")
        by_product = [build.tensor(draw(st.integers(1, 9)), Role.ACTIVATION)] if draw(st.booleans()) else []
        skip = [draw(st.sampled_from(values))] if draw(st.booleans()) else []
        kind = draw(st.sampled_from(["plain", "random", "statistics"]))
        touched = [statistics[layer]] if kind == "statistics" else []
        build.op(
            f"layer.{kind}",
            Phase.FORWARD,
            [values[-1], parameters[layer], *skip, *touched],
            [made, *by_product, *touched],
            recomputable=kind != "random",
            workspace=draw(st.integers(0, 20)),
        )
        if draw(st.booleans()):
            build.op("relu_", Phase.FORWARD, [made], [made])
        layer_of.append((values[-1], made, by_product))
        mask = None
        if draw(st.booleans()):
            nbytes, signs_suffice = build.tensors[made].nbytes, draw(st.booleans())
            mask = build.tensor(nbytes, Role.ACTIVATION, dtype="bool")
            build.op("draw", Phase.FORWARD, (), [mask], recomputable=False)
            dropped = build.tensor(nbytes, Role.ACTIVATION, dtype="bool")
            codes = [(mask, Code.SIGNS)] if signs_suffice else []
            build.op("aten.mul.Tensor", Phase.FORWARD, [made, mask], [dropped], codes=codes)
            made = dropped
        masks.append(mask)
        values.append(made)
    loss = build.tensor(1, Role.OUTPUT)
    build.op("loss", Phase.FORWARD, [values[-1]], [loss])
    gradient = build.tensor(build.tensors[values[-1]].nbytes, Role.ACTIVATION)
    build.op("loss_backward", Phase.BACKWARD, [values[-1]], [gradient])
    gradients = {}
    for layer in reversed(range(layers)):
        before, after, by_product = layer_of[layer]
        mask = masks[layer]
        if mask is not None:
            kept = build.tensor(build.tensors[after].nbytes, Role.ACTIVATION)
            build.op("aten.mul.Tensor", Phase.BACKWARD, [gradient, mask], [kept], codes=[(mask, Code.SIGNS)])
            gradient = kept
        below = build.tensor(build.tensors[before].nbytes, Role.ACTIVATION)
        in_parts = parts[layer] > 1 and draw(st.booleans())
        gradients[layer] = [
            build.tensor(build.tensors[like].nbytes, Role.GRADIENT)
            for like in (slots[layer] if in_parts else [parameters[layer]])
        ]
        apart = in_parts or draw(st.booleans())
        takes_signs, takes_shape = draw(st.booleans()), draw(st.booleans())
        build.op(
            "aten.max_pool2d_with_indices_backward.default"
            if takes_signs or takes_shape
            else "layer_backward",
            Phase.BACKWARD,
            [before, after, *by_product, gradient, parameters[layer]],
            [below] if apart else [below, *gradients[layer]],
            workspace=draw(st.integers(0, 20)),
            codes=[(after, Code.SIGNS)] if takes_signs else [],
            shapes=[before] if takes_shape else [],
        )
        unread = [parameters[layer]] if in_parts and draw(st.booleans()) else []
        for made in gradients[layer] if apart else ():
            read = [gradient, *unread] if takes_shape else [before, gradient, *unread]
            build.op("weight_backward", Phase.BACKWARD, read, [made], unread=unread)
        gradient = below
    for layer in range(layers):
        for part, slot in enumerate(slots[layer]):
            own = gradients[layer][part] if len(gradients[layer]) > 1 else gradients[layer][0]
            build.op(
                "update",
                Phase.OPTIMIZER,
                [parameters[layer], slot, own],
                [parameters[layer], slot],
                recomputable=False,
            )
    build.op("tensile.report", Phase.OPTIMIZER, [loss], (), recomputable=False)
    return StepGraph(tensors=tuple(build.tensors), ops=tuple(build.ops))


@st.composite
def devices(draw, memory_nbytes: int = 10**9, *, costly_copies: bool = False) -> DeviceSpec:
    """Draw a device whose link moves a byte in about the time of an op, or much slower or faster.

    costly_copies: some of them lose the ops' time to copies.
    """
    rate = draw(st.sampled_from([10**4, 10**6, 10**7, 10**8, 10**9, 10**10]))
    return DeviceSpec(
        name="random",
        memory_nbytes=memory_nbytes,
        d2h_bytes_per_s=rate,
        h2d_bytes_per_s=rate * draw(st.integers(1, 2)),
        duplex=draw(st.booleans()),
        flops_per_s=10**9,
        memory_bytes_per_s=10**9,
        op_overhead_ns=1,
        copies_cost_bytes_per_s=draw(st.sampled_from([0, 10**6, 10**8])) if costly_copies else 0,
    )


def latencies_for(graph: StepGraph) -> st.SearchStrategy[list[int]]:
    """Draw an op time of 1 to 3,000 ns for each op."""
    return st.lists(st.integers(1, 3000), min_size=len(graph.ops), max_size=len(graph.ops))


def without_codes(graph: StepGraph) -> StepGraph:
    """Return a drawn graph with nothing in it that can be packed."""
    going_back = {"aten.max_pool2d_with_indices_backward.default": "layer_backward"}
    ops = (replace(op, target=going_back.get(op.target, op.target), codes=(), shapes=()) for op in graph.ops)
    return StepGraph(tensors=graph.tensors, ops=tuple(ops))


@st.composite
def convolutional_graphs(draw, max_layers: int = 7) -> StepGraph:
    """Draw a step with convolutions, at least one, products of matrices, joins and cheap layers."""
    graph = without_codes(draw(training_graphs(max_layers)))
    forward = [op.id for op in graph.ops if op.target.startswith("layer.")]
    backward = [op.id for op in graph.ops if op.target == "layer_backward"]
    kinds = [draw(st.sampled_from(["convolution", "convolution", "cheap", "addmm", "add"])) for _ in forward]
    kinds[draw(st.integers(0, len(kinds) - 1))] = "convolution"
    targets = {op.id: op.target for op in graph.ops}
    for kind, made, undone in zip(kinds, forward, reversed(backward), strict=True):
        if kind != "cheap":
            targets[made] = f"aten.{kind}.default"
        if kind == "convolution":
            targets[undone] = "aten.convolution_backward.default"
    ops = tuple(replace(op, target=targets[op.id]) for op in graph.ops)
    return StepGraph(tensors=graph.tensors, ops=ops)


@st.composite
def random_jobs(draw, policy: str = "auto", max_layers: int = 7) -> JobRequest:
    """Draw a job of a random step."""
    graph = draw(training_graphs(max_layers))
    return JobRequest(job_id=1, graph=graph, latencies_ns=draw(latencies_for(graph)), policy=policy)
