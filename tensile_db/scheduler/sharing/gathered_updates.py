"""Updates of small tensors put off until several are due, so that ops of one kind follow each other.

An optimizer's step has a few ops for each parameter, and half of a network's parameters have a few KiB: such
kernels are expected to take a GPU longer to begin than to end.  Brought together, those of one kind can be
carried out by one call (worker/execution/joined_ops.py).  Their gradients and temporaries stay for as long,
so no more wait at a time than fit two MiB, and none that the program moves or needs meanwhile.

Source: ours; pytorch torch/optim/sgd.py, `_multi_tensor_sgd`, joins all updates of a step.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensile_db.graph import Op, OpId, Phase, StepGraph, TensorId
from tensile_db.scheduler.program import Compute, Free, Instruction, Program
from tensile_db.scheduler.sharing import growing_range
from tensile_db.scheduler.verify import verify

#: Bytes, beside what persists, of updates that wait together, at most.
TOGETHER_NBYTES = 2 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """A program whose updates have been brought together."""

    program: Program
    #: Instructions [begin, end) that are ops of one kind, of different updates: in whatever order.
    rows: tuple[tuple[int, int], ...]


@dataclass(slots=True, eq=False)
class _Update:
    """Ops that change tensors which no others change."""

    ops: list[Op]
    #: What the program does for it, once its first op is due.
    places: list[int] = field(default_factory=list)
    can_wait: bool = True
    #: Until it is handed over.
    waits: bool = False
    #: Of its tensors that do not persist.
    nbytes: int = 0

    @property
    def has_begun(self) -> bool:
        return bool(self.places)


def gathered(graph: StepGraph, program: Program) -> Gathered:
    """Return the program with updates of small tensors brought together; graph: the program's.

    It is proven anew (`verify.py`); its peak may be higher, by TOGETHER_NBYTES at most.  Takes time in
    proportion to the instructions.
    """
    updates, shared = _placed(graph, program.instructions)
    gathering = _Gathering(graph, program.instructions, shared)
    ends = {update.places[-1]: update for update in updates if update.can_wait}
    moved = {place for update in ends.values() for place in update.places}
    last = max(ends, default=None)
    for place in range(len(program.instructions)):
        if place in ends:
            gathering.put_off(ends[place], is_last=place == last)
        elif place not in moved:
            gathering.keep(place)
    if not gathering.rows:
        return Gathered(program=program, rows=())
    made = tuple(gathering.made)
    peak_nbytes = verify(graph, made, program.start_on_host)
    return Gathered(
        program=replace(program, instructions=made, guaranteed_peak_nbytes=peak_nbytes),
        rows=tuple(gathering.rows),
    )


class _Gathering:
    """What is made of a program, whose places are given in order, and updates that wait meanwhile."""

    def __init__(
        self,
        graph: StepGraph,
        instructions: Sequence[Instruction],
        shared: Mapping[int, Sequence[_Update]],
    ) -> None:
        """shared: by the place where it is freed, updates that take what several do."""
        self.made: list[Instruction] = []
        self.rows: list[tuple[int, int]] = []
        self._graph = graph
        self._instructions = instructions
        self._shared = shared
        self._waiting: list[_Update] = []
        self._waiting_nbytes = 0
        #: Places of what is freed once none of those who take it waits.
        self._late: list[int] = []

    def keep(self, place: int) -> None:
        """Go on with an instruction that is no part of an update which waits."""
        if any(update.waits for update in self._shared.get(place, ())):
            self._late.append(place)
        else:
            self.made.append(self._instructions[place])

    def put_off(self, update: _Update, *, is_last: bool) -> None:
        """Have an update wait; those before no longer, if they would be too many together."""
        if self._waiting_nbytes + update.nbytes > TOGETHER_NBYTES:
            self._hand_over()
        self._waiting.append(update)
        self._waiting_nbytes += update.nbytes
        if is_last:
            self._hand_over()

    def _hand_over(self) -> None:
        """Do what the program does for those who wait, for those of one kind in step."""
        kinds: dict[tuple[object, ...], list[_Update]] = defaultdict(list)
        for update in self._waiting:
            update.waits = False
            does = [self._instructions[place] for place in update.places]
            kinds[tuple(_kind(self._graph, does))].append(update)
        for alike in kinds.values():
            for places in zip(*(update.places for update in alike), strict=True):
                if len(alike) > 1 and isinstance(self._instructions[places[0]], Compute):
                    self.rows.append((len(self.made), len(self.made) + len(alike)))
                self.made += [self._instructions[place] for place in places]
        self._waiting.clear()
        self._waiting_nbytes = 0
        late, self._late = self._late, []
        for place in late:
            self.keep(place)


def _placed(
    graph: StepGraph, instructions: Sequence[Instruction]
) -> tuple[list[_Update], dict[int, list[_Update]]]:
    """Return all updates, with their places in the program and whether they can wait for others.

    Also which of them take what several do, by the place where that is freed.
    """
    updates = _updates(graph)
    of_op = {op.id: update for update in updates for op in update.ops}
    touching: dict[TensorId, list[_Update]] = defaultdict(list)
    for update in updates:
        tensors = {tensor for op in update.ops for tensor in (*op.reads, *op.writes)}
        for tensor in tensors:
            touching[tensor].append(update)
        sizes = [graph.tensors[tensor].nbytes for tensor in tensors if not graph.tensors[tensor].persistent]
        # As the allocator has it: most of them may have a few bytes.
        update.nbytes = sum(map(growing_range.in_granules, sizes))
        # Of small tensors only: nobody chooses where these come (addresses.py).
        is_small = max(sizes, default=0) <= growing_range.SMALL_NBYTES
        update.can_wait = is_small and update.nbytes <= TOGETHER_NBYTES
    shared: dict[int, list[_Update]] = {}
    for place, instruction in enumerate(instructions):
        own, others = _concerned(graph, instruction, of_op, touching)
        if own is not None:
            own.places.append(place)
        elif isinstance(instruction, Free):
            shared[place] = others
        else:
            for update in others:
                update.can_wait = False
    for update in updates:
        update.can_wait &= update.has_begun
        update.waits = update.can_wait
    return updates, shared


def _updates(graph: StepGraph) -> list[_Update]:
    """Return the optimizer's ops, those together of which one reads or changes what another one writes."""
    ops = [op for op in graph.ops if op.phase is Phase.OPTIMIZER and op.writes]
    written = {tensor for op in ops for tensor in op.writes}
    groups: dict[TensorId, TensorId] = {tensor: tensor for tensor in written}

    def group_of(tensor: TensorId) -> TensorId:
        while groups[tensor] != tensor:
            groups[tensor] = tensor = groups[groups[tensor]]
        return tensor

    for op in ops:
        first, *others = (*op.writes, *(tensor for tensor in op.reads if tensor in written))
        for other in others:
            groups[group_of(other)] = group_of(first)
    found: dict[TensorId, _Update] = {}
    for op in ops:
        found.setdefault(group_of(op.writes[0]), _Update([])).ops.append(op)
    return list(found.values())


def _concerned(
    graph: StepGraph,
    instruction: Instruction,
    of_op: Mapping[OpId, _Update],
    touching: Mapping[TensorId, Sequence[_Update]],
) -> tuple[_Update | None, list[_Update]]:
    """Return the update that an instruction is a part of, or those that have begun and that it touches."""
    if isinstance(instruction, Compute):
        op, own = graph.ops[instruction.op], of_op.get(instruction.op)
        if own is not None and not instruction.recompute:
            return own, []
        read = (
            update
            for tensor in op.reads
            for update in touching.get(tensor, ())
            if any(tensor in each.writes for each in update.ops)
        )
        changed = (update for tensor in op.writes for update in touching.get(tensor, ()))
        return None, [update for update in (*read, *changed) if update.has_begun]
    begun = [update for update in touching.get(instruction.tensor, ()) if update.has_begun]
    if isinstance(instruction, Free) and len(begun) == 1:
        return begun[0], []
    return None, begun


def _kind(graph: StepGraph, instructions: Sequence[Instruction]) -> Iterator[object]:
    """Yield what instructions do, with tensors by the order in which they occur."""
    numbers: dict[TensorId, int] = {}

    def numbered(tensors: Sequence[TensorId]) -> tuple[int, ...]:
        return tuple(numbers.setdefault(tensor, len(numbers)) for tensor in tensors)

    for instruction in instructions:
        if isinstance(instruction, Compute):
            op = graph.ops[instruction.op]
            yield op.target, numbered(op.reads), numbered(op.writes)
        else:
            yield numbered([instruction.tensor])
