"""The same training twice: by plain eager PyTorch, and by a captured step's program on a device."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import nn

from tensile_db.capture.loss_scale import GROWTH_TRACKER, SCALE, SKIPPED
from tensile_db.capture.optimizers import configure
from tensile_db.capture.packed_step import planned_step
from tensile_db.capture.precision import Precision
from tensile_db.capture.schedules import LearningRateSchedule
from tensile_db.capture.state import initial_state, model_state
from tensile_db.capture.train_step import capture_train_step
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.features import normalisation as normalisation_of
from tensile_db.data.features import normalised
from tensile_db.errors import InvalidPlan
from tensile_db.graph import Phase, StepGraph, TensorId
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.plan import Plan, Recompute, Release, SwapIn, SwapOut, Wait
from tensile_db.scheduler.policies.vanilla import plan_one
from tensile_db.scheduler.request import JobRequest
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.job_memory import JobMemory

SEED = 5
CLASSES = 5
LEARNING_RATE = 0.01

#: One parameter at a time, also where PyTorch would by default update many at once.
EAGER = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=LEARNING_RATE, foreach=False),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.9, foreach=False),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=LEARNING_RATE, foreach=False),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=LEARNING_RATE, foreach=False),
}


#: What eager PyTorch's autocast casts to.
CASTS = {Precision.BFLOAT16: torch.bfloat16, Precision.FLOAT16: torch.float16}


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is trained; equal ones train alike."""

    #: Makes the network, with the same weights whenever it is called.
    build: Callable[[], nn.Module]
    #: Of a batch of images, or of tokens.
    shape: tuple[int, ...]
    optimizer: str
    iterations: int = 3
    #: Of tokens, which are classes, too; None: images.
    vocabulary: int | None = None
    #: As the network returns rows for each row of the batch.
    targets_per_row: int = 1
    precision: Precision = Precision.FLOAT32
    #: Of images that come as bytes; None: they come as the network takes them.
    byte_channels: int | None = None
    #: Of the learning rate; None: it stays.
    schedule: LearningRateSchedule | None = None
    #: Of each class in the loss; None: all rows count alike.
    class_weights: tuple[float, ...] | None = None
    #: Of all gradients together; None: they are not clipped.
    max_gradient_norm: float | None = None
    #: Whether parameters that require no gradient are a backbone's, whose modules do as in evaluation.
    is_frozen: bool = False

    @property
    def optimizer_config(self):
        """The optimizer as it is captured."""
        made = configure(
            self.optimizer, learning_rate=LEARNING_RATE, max_gradient_norm=self.max_gradient_norm
        )
        return replace(made, schedule=self.schedule)

    def batches(self):
        """Return the batches of all iterations."""
        generator = torch.Generator().manual_seed(1)
        targets = (self.shape[0] * self.targets_per_row,)
        weights = () if self.class_weights is None else (torch.tensor(self.class_weights),)
        normalisation = () if self.byte_channels is None else (torch.from_numpy(normalisation_of(self.spec)),)

        def features():
            if self.byte_channels is not None:
                shape = (self.shape[0], self.byte_channels, *self.shape[2:])
                return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
            if self.vocabulary is None:
                return torch.randn(self.shape, generator=generator)
            return torch.randint(0, self.vocabulary, self.shape, generator=generator)

        return [
            (
                features(),
                torch.randint(0, self.vocabulary or CLASSES, targets, generator=generator),
                *weights,
                *normalisation,
            )
            for _ in range(self.iterations)
        ]

    @property
    def spec(self):
        """How images that come as bytes are normalised."""
        _, channels, height, width = self.shape
        return FeatureSpec(
            kind="image",
            columns=("image",),
            source_shape=(height, width, self.byte_channels),
            raw=True,
            size=(height, width),
            channels=channels,
            mean=tuple(120.7 + 3.1 * channel for channel in range(self.byte_channels)),
            scale=tuple(61.3 + 1.9 * channel for channel in range(self.byte_channels)),
        )


def train_eagerly(training, where="cpu"):
    """Return the bits of parameters, buffers and optimizer state by their names here, and the losses.

    where: PyTorch's name of the device.
    """
    model = training.build().to(where)
    optimizer = EAGER[training.optimizer](model.parameters())
    kind, scales = torch.device(where).type, training.precision is Precision.FLOAT16
    casts = CASTS.get(training.precision)
    weights = None if training.class_weights is None else torch.tensor(training.class_weights, device=where)
    scaler = torch.amp.GradScaler(kind, enabled=scales)
    schedule = training.schedule or (lambda update: 1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: schedule(done + 1))
    losses = []
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        for features, target, *_ in training.batches():
            if training.byte_channels is not None:
                features = torch.from_numpy(normalised(features.numpy(), training.spec))
            optimizer.zero_grad()
            with torch.autocast(kind, dtype=casts, enabled=casts is not None):
                loss = nn.functional.cross_entropy(model(features.to(where)), target.to(where), weights)
            scaler.scale(loss).backward()
            if training.max_gradient_norm is not None:
                scaler.unscale_(optimizer)
                # One gradient at a time: GPUs would else sum up otherwise.
                nn.utils.clip_grad_norm_(model.parameters(), training.max_gradient_norm, foreach=False)
            scaler.step(optimizer)
            scale = scaler.get_scale()
            scaler.update()
            # The scale is halved where nothing was updated.
            if scaler.get_scale() >= scale:
                scheduler.step()
            losses.append(loss.item())
    state = model_state(model)
    if scales:
        state |= {SCALE: scaler._scale, GROWTH_TRACKER: scaler._growth_tracker}
    for name, parameter in model.named_parameters():
        for slot, value in optimizer.state[parameter].items():
            if isinstance(value, torch.Tensor) and slot != "step":
                state[f"optimizer_state/{name}/{slot}"] = value
    return bits_of(state), losses


def capture(training, where="cpu"):
    """Return the captured step, and what its persistent tensors begin with; where: as in train_eagerly."""
    return _captured_step(training, where), first_state(training)


def capture_once(training):
    """Return what `capture` does, the step captured by the first call: not where a test changes how it is."""
    return _kept_step(training), first_state(training)


@cache
def _kept_step(training):
    return _captured_step(training, "cpu")


def _captured_step(training, where):
    return capture_train_step(
        training.build(),
        batch_shape=training.shape,
        target="classes",
        optimizer=training.optimizer_config,
        features_dtype=torch.float32 if training.vocabulary is None else torch.int64,
        targets_per_row=training.targets_per_row,
        device=torch.device(where),
        precision=training.precision,
        byte_channels=training.byte_channels,
        num_class_weights=None if training.class_weights is None else len(training.class_weights),
        is_frozen=training.is_frozen,
    )


def first_state(training):
    """Return what the persistent tensors begin with."""
    return initial_state(
        training.build(), training.optimizer_config, scales_loss=training.precision.scales_loss
    )


def tight_plan(step, device, share, policy="tensile"):
    """Return a plan whose guaranteed peak is at most `share` of vanilla's."""
    request = JobRequest(
        job_id=1,
        graph=step.graph,
        latencies_ns=predict_latencies_ns(step.graph, device.spec),
        policy=policy,
        memory_limit_nbytes=int(share * vanilla_peak_nbytes(step.graph)),
    )
    (plan,) = plan_jobs([request], device.spec)
    return plan


def unpackable(step):
    """Return the step with nothing in it that can be packed."""
    ops = tuple(replace(op, codes=(), shapes=()) for op in step.graph.ops)
    return replace(step, graph=StepGraph(tensors=step.graph.tensors, ops=ops))


def as_planned(step, plan, device):
    """Return the step as the plan packs and splits it."""
    return planned_step(step, plan.plan.rewriting, device.torch_device)


def vanilla_peak_nbytes(graph):
    return lower(graph, plan_one(graph)).guaranteed_peak_nbytes


def train_here(
    device,
    step,
    state,
    program,
    batches,
    *,
    job=1,
    budget_nbytes=None,
    first=1,
    random_state=None,
    after=lambda memory: None,
    **options,
):
    """Train on a device within the program's guaranteed peak; return the state's bits, and the results.

    budget_nbytes: another one; first: number of the first batch's iteration; random_state: of the generator,
    else it is seeded anew; after: called with the job's memory when the last iteration is over; options: of
    the executor.
    """
    budget_nbytes = budget_nbytes or program.guaranteed_peak_nbytes
    with JobMemory(device, job=job, budget_nbytes=budget_nbytes, state=state, seed=SEED) as memory:
        if random_state is not None:
            memory.set_random_state(random_state)
        executor = Executor(step, memory, **options)
        executor.adopt(program)
        results = []
        for batch in batches:
            results.append(executor.run_iteration(batch, first + len(results) - skips_of(results)))
        after(memory)
        return bits_of(executor.state()), results


def skips_of(results):
    """Return how many iterations updated nothing, for their gradients were not finite."""
    return skips_in(result.outputs for result in results)


def skips_in(outputs):
    """Return the same of iterations' outputs."""
    return sum(bool(each[SKIPPED]) for each in outputs if SKIPPED in each)


def losses_of(results):
    """Return the loss of each iteration."""
    return [result.outputs["loss"].item() for result in results]


def bits_of(state):
    """Return what stands for each tensor's type, shape and every bit: -0.0 is not 0.0, NaN equals itself."""
    return {name: _bits_of(tensor.detach().cpu().contiguous()) for name, tensor in state.items()}


def _bits_of(tensor):
    elements = tensor.reshape(-1).view(torch.uint8).numpy()
    return str(tensor.dtype), tuple(tensor.shape), hashlib.sha256(elements).hexdigest()


def differing(got, want):
    """Return the names of the tensors whose bits differ."""
    assert sorted(got) == sorted(want)
    return [name for name in want if got[name] != want[name]]


def with_recomputation(graph: StepGraph, plan: Plan, *, tensors: int) -> Plan:
    """Return the plan with as many further activations, the largest ones, run again for the backward pass.

    What their ops read stays on the device; else the plan is as it was.
    """
    added = 0
    for tensor in sorted(graph.tensors, key=lambda tensor: (-tensor.nbytes, tensor.id)):
        if added == tensors:
            return plan
        changed = recomputing(graph, plan, tensor.id)
        if changed is not None and _is_valid(graph, changed):
            plan, added = changed, added + 1
    raise AssertionError(f"only {added} activations of the graph can be run again")


def _is_valid(graph: StepGraph, plan: Plan) -> bool:
    try:
        lower(graph, plan)
    except InvalidPlan:
        return False
    return True


def recomputing(graph: StepGraph, plan: Plan, tensor: TensorId) -> Plan | None:
    """Return the plan in which an activation leaves after the forward pass, if its ops may run again."""
    ops = [graph.ops[op] for op in plan.order]
    makers = [op for op in ops if tensor in op.writes]
    forward = [op for op in ops if tensor in (*op.reads, *op.writes) and op.phase is Phase.FORWARD]
    backward = [op for op in ops if tensor in op.reads and op.phase is Phase.BACKWARD]
    runs_again = any(isinstance(event, Recompute) and event.tensor == tensor for event in plan.events)
    if graph.tensors[tensor].persistent or runs_again or not (makers and forward and backward):
        return None
    if not all(op.recomputable and op.phase is Phase.FORWARD and op.reads for op in makers):
        return None
    stays = {tensor, *(other for op in makers for other in (*op.reads, *op.writes))}
    kept = [e for e in plan.events if not (isinstance(e, SwapOut | SwapIn | Wait) and e.tensor in stays)]
    leaves = Release(tensor=tensor, after_op=forward[-1].id)
    returns = Recompute(tensor=tensor, before_op=backward[0].id, ops=tuple(op.id for op in makers))
    return Plan(policy="recomputing", order=plan.order, events=(*kept, leaves, returns))
