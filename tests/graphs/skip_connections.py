"""A step through a U-shaped network written by hand: what each level makes going down joins it going up."""

from tensile_db.graph import Phase, Role, StepGraph
from tests.graphs.hand_made import OpRow, graph_of

FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD


class SkipConnections:
    """The graph, and what is in it by level; a level's maps have half of the bytes of the one above."""

    def __init__(self, levels: int, *, map_nbytes: int = 1024) -> None:
        self._levels = levels
        self._map_nbytes = map_nbytes
        self._tensors: list[tuple[int, Role]] = []
        self._ops: list[OpRow] = []
        self._latencies_ns: list[int] = []
        image = self._tensor(map_nbytes, Role.INPUT)
        self._op("tensile.load_batch", FORWARD, [], [image], 1)
        #: What a convolution makes of each level, and that normalized, which is cheap to make again.
        self.raw, self.active = [], []
        for level in range(levels):
            above = self.active[-1] if self.active else image
            self.raw.append(self._made("convolve", [above], level, 20))
            self.active.append(self._made("normalize", [self.raw[-1]], level, 3))
        #: From the lowest level but one to the first: what joins both halves, and what is made of that.
        self.joined: dict[int, int] = {}
        out = {levels - 1: self.active[-1]}
        for level in reversed(range(levels - 1)):
            up = self._made("widen", [out[level + 1]], level, 3)
            self.joined[level] = self._made("cat", [self.active[level], up], level, 4, maps=2)
            out[level] = self._made("convolve", [self.joined[level]], level, 20)
        loss = self._tensor(8, Role.OUTPUT)
        self._op("loss", FORWARD, [out[0]], [loss], 1, recomputable=False)
        self._backward(image, loss, out)

    def _backward(self, image: int, loss: int, out: dict[int, int]) -> None:
        gradient, of_joined = loss, {}
        for level in range(self._levels - 1):
            reads = [self.joined[level], gradient]
            of_joined[level] = self._made("convolve_backward", reads, level, 40, maps=2, phase=BACKWARD)
            reads = [out[level + 1], of_joined[level]]
            gradient = self._made("widen_backward", reads, level + 1, 5, phase=BACKWARD)
        for level in reversed(range(self._levels)):
            skipped = [of_joined[level]] if level in of_joined else []
            reads = [self.raw[level], self.active[level], gradient, *skipped]
            of_raw = self._made("normalize_backward", reads, level, 6, phase=BACKWARD)
            above = self.active[level - 1] if level else image
            gradient = self._made("convolve_backward", [above, of_raw], max(level - 1, 0), 40, phase=BACKWARD)

    @property
    def graph(self) -> StepGraph:
        return graph_of(self._tensors, self._ops)

    @property
    def latencies_ns(self) -> tuple[int, ...]:
        """By op id, as much as it makes."""
        return tuple(self._latencies_ns)

    def _made(
        self, target: str, reads: list[int], level: int, cost: int, *, maps: int = 1, phase: Phase = FORWARD
    ) -> int:
        """Add an op that makes maps of a level, for `cost` ns a byte of one; return what it makes."""
        nbytes = self._map_nbytes >> level
        made = self._tensor(maps * nbytes, Role.ACTIVATION)
        self._op(target, phase, reads, [made], cost * nbytes, recomputable=phase is FORWARD)
        return made

    def _tensor(self, nbytes: int, role: Role) -> int:
        self._tensors.append((nbytes, role))
        return len(self._tensors) - 1

    def _op(
        self,
        target: str,
        phase: Phase,
        reads: list[int],
        writes: list[int],
        latency_ns: int,
        *,
        recomputable: bool = False,
    ) -> None:
        self._ops.append((target, phase, reads, writes, recomputable))
        self._latencies_ns.append(latency_ns)
