"""Traces a model's step into ATen operators without memory and without arithmetic.

The real model is built outside; here its parameters and buffers are fake tensors of the same layout.  The
trace is not functionalized: what eager PyTorch updates in place is updated in place.

Source: torch.fx.experimental.proxy_tensor.make_fx under FakeTensorMode.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import fx, nn
from torch._ops import OpOverload
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.utils._pytree import tree_leaves

from tensile_db.capture.fakes.cpu_layouts import CpuFakeMode
from tensile_db.capture.fakes.cpu_recurrent import layer_in_training
from tensile_db.capture.fakes.cuda_layouts import CudaFakeMode
from tensile_db.capture.large_losses import loss_of_picked
from tensile_db.capture.loss_scale import SCALE, initial_loss_scale
from tensile_db.capture.networks.architectures import package_of
from tensile_db.capture.networks.data_assignments import DataAssignmentsRefused
from tensile_db.capture.networks.kept_tensors import (
    require_kept,
    require_state_substituted,
    with_own_constants,
)
from tensile_db.capture.networks.own_errors import cannot_run
from tensile_db.capture.networks.shared_memory import require_separate_writes
from tensile_db.capture.networks.traceable import (
    require_differentiable,
    require_jobs_generator,
    require_no_gradients_aside,
    require_operators,
    require_plain_gradients,
    require_plain_writes,
    require_traceable,
)
from tensile_db.capture.precision import Precision, autocast
from tensile_db.capture.state import is_of_model, model_state
from tensile_db.capture.substitute import Rebound, substituted
from tensile_db.errors import TensileError


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a fake tensor is made from."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Operators of a step in eager's order, as an FX graph whose nodes carry fake results."""

    module: fx.GraphModule
    #: Placeholders of parameters, buffers and the loss scale, by the names of state.py.
    state: Mapping[str, fx.Node]
    #: Placeholders of the batch.
    inputs: tuple[fx.Node, ...]
    #: The loss, or the model's output.
    result: fx.Node
    #: By the trained parameters' qualified names; a parameter that the loss does not depend on is left out.
    gradients: Mapping[str, fx.Node]
    #: Names of the nodes that autograd made.
    backward: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A step that is traced, and yet to be lowered, or only a part of it."""

    trace: Trace
    #: Of the inputs of the trace, in order.
    input_names: tuple[str, ...]
    #: Qualified names of the parameters that are trained, by this step or beside it.
    trained: frozenset[str]
    precision: Precision
    device: torch.device


#: Operators that are captured as several others.
_REPLACED: Mapping[OpOverload, Callable[..., Any]] = {
    torch.ops.aten.mkldnn_rnn_layer.default: layer_in_training,
    torch.ops.aten.nll_loss_forward.default: loss_of_picked,
}

#: By kind of device: whose results lie and are as large as its kernels' are.
_FAKE_MODES: Mapping[str, type[FakeTensorMode]] = {"cpu": CpuFakeMode, "cuda": CudaFakeMode}

#: (model's output, the batch after its features) -> the step's result.
ResultOf = Callable[[torch.Tensor, Sequence[torch.Tensor]], torch.Tensor]

#: The batch as it comes -> the features that the model takes, and what `ResultOf` does.
Prepare = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def prepare_tracing() -> None:
    """Let threads trace after others have ended; call it first, in a thread that lives to the end.

    PyTorch 2.11, built for CUDA where there is no GPU, makes a device guard that belongs to the first thread
    to enter fake tensors' mode, and uses it on when that thread is gone: a later entry was a segmentation
    fault.  2.15 does not.
    """
    with FakeTensorMode():
        pass


def trace_step(
    model: nn.Module,
    batch: Sequence[Layout],
    result_of: ResultOf,
    *,
    training: bool,
    device: torch.device,
    precision: Precision = Precision.FLOAT32,
    prepare: Prepare | None = None,
    architecture: str | None = None,
    evaluated: Collection[nn.Module] = (),
) -> Trace:
    """Trace the model on a batch, in training mode with its gradients or in evaluation mode without.

    batch: the features, which are the model's input, then whatever `result_of` takes; or what `prepare`, a
    part of the step that no precision concerns, makes these of.
    architecture: its name, for errors.
    evaluated: modules of the model that are in evaluation mode all the same.
    Raises InvalidRequest where the model cannot run on such a batch, decides by its tensors' values, or its
    code raises whatever else, SystemExit included; Unsupported where the device cannot train its layers yet.
    """
    kind_of_mode = _FAKE_MODES.get(device.type, FakeTensorMode)
    fake_mode = kind_of_mode(allow_non_fake_inputs=True)
    require_traceable(model, architecture)
    given = model_state(model)
    if training and precision.scales_loss:
        given |= initial_loss_scale()
    with fake_mode:
        state = {name: _fake_copy(tensor, device) for name, tensor in given.items()}
        inputs = [torch.empty(layout.shape, dtype=layout.dtype, device=device) for layout in batch]
    differentiated = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    for name in differentiated:
        # Also where no gradient is taken: matmul chooses its kernel by this, as it does of the model's own.
        of_step = state[f"parameter/{name}"].requires_grad_()
        # What register_hook has hung on a parameter, as a mask of its gradient, is part of the step.
        for hook in (model.get_parameter(name)._backward_hooks or {}).values():  # noqa: SLF001
            of_step.register_hook(hook)  # type: ignore[no-untyped-call]
    step = _Step(
        model,
        result_of,
        names=tuple(state),
        trained=differentiated if training else (),
        training=training,
        casts=lambda: autocast(precision, device),
        prepare=prepare,
        architecture=architecture,
    )
    try:
        with (
            _mode(model, training=training, evaluated=evaluated),
            fake_mode,
            # A second thread of autograd's would know nothing of the modes that trace.
            torch.autograd.set_multithreading_enabled(False),
            torch.set_grad_enabled(training),
            _refusals_unlogged(),
        ):
            module = make_fx(step.run, decomposition_table=_REPLACED)(list(state.values()), *inputs)
    except (TensileError, KeyboardInterrupt):
        raise
    except BaseException as error:
        package = None if architecture is None else package_of(architecture)
        refusal = cannot_run(error, architecture, batch[0].shape, package=package)
        if refusal is None:
            raise
        raise refusal from error
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    of_state = dict(zip(state, placeholders, strict=False))
    require_operators(module, of_state.values(), architecture)
    require_state_substituted(module, model, architecture)
    require_kept(module, step.rebound, architecture)
    require_jobs_generator(module, architecture)
    require_plain_writes(module, architecture)
    require_separate_writes(module, of_state, model, architecture)
    with_own_constants(module)
    result, gradients = _outputs(module)
    return Trace(
        module=module,
        state=of_state,
        inputs=tuple(placeholders[len(state) :]),
        result=result,
        gradients=dict(zip(step.have_gradient, gradients, strict=True)),
        backward=frozenset(step.backward),
    )


@contextmanager
def _refusals_unlogged() -> Iterator[None]:
    """Keep PyTorch from logging, with its traceback, what an operator refuses: it is raised, too."""
    thread = get_ident()

    def passes(record: logging.LogRecord) -> bool:
        return record.thread != thread or not str(record.msg).startswith("failed while attempting to run")

    log = logging.getLogger(fake_tensor.__name__)
    log.addFilter(passes)
    try:
        yield
    finally:
        log.removeFilter(passes)


@contextmanager
def _autocast_cache() -> Iterator[None]:
    """Let the network's own regions of autocast cast each parameter once, eager's default.

    make_fx turns it off.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(True)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


class _Step:
    """The step as it is traced, and what only a run of it tells of the graph."""

    def __init__(
        self,
        model: nn.Module,
        result_of: ResultOf,
        *,
        names: Sequence[str],
        trained: Sequence[str],
        training: bool,
        casts: Callable[[], AbstractContextManager[None]],
        prepare: Prepare | None,
        architecture: str | None,
    ) -> None:
        self._model = model
        self._result_of = result_of
        #: Of the values that `run` gets, as in state.py.
        self._names = names
        #: Qualified names of the parameters that are to get gradients.
        self._trained = trained
        self._training = training
        #: Within which the forward pass and the loss are computed; the backward pass follows their casts.
        self._casts = casts
        self._prepare = prepare
        self._architecture = architecture
        #: Of `trained`, those on which the loss depends.
        self.have_gradient: list[str] = []
        #: Names of the nodes that autograd made.
        self.backward: set[str] = set()
        #: What the forward pass has bound anew.
        self.rebound: Sequence[Rebound] = ()

    def run(
        self, values: list[torch.Tensor], *batch: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the result and the gradients, with these values as the model's state."""
        features, *rest = batch if self._prepare is None else self._prepare(batch)
        state = dict(zip(self._names, values, strict=True))
        named = {name.split("/", 1)[1]: value for name, value in state.items() if is_of_model(name)}
        # Also in the backward pass, for what torch.utils.checkpoint computes again there.
        with _autocast_cache(), substituted(self._model, named, self._architecture) as self.rebound:
            # Not in evaluation, where a mode would lead attention off its fast path.
            refused = DataAssignmentsRefused(self._architecture) if self._training else nullcontext()
            with self._casts(), refused:
                result = self._result_of(self._model(features), rest)
            if not self._training:
                return result, []
            of = result * state[SCALE] if SCALE in state else result
            gradients = self._gradients(of, [named[name] for name in self._trained])
        require_no_gradients_aside(named, self._trained, self._architecture)
        return result, gradients

    def _gradients(self, loss: torch.Tensor, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        graph = _graph_being_traced()
        forward = {node.name for node in graph.nodes}
        require_differentiable(loss, parameters, self._architecture)
        gradients: Sequence[torch.Tensor | None] = torch.autograd.grad(loss, parameters, allow_unused=True)
        backward = [node for node in graph.nodes if node.name not in forward]
        require_plain_gradients(gradients, backward, self._architecture)
        self.backward.update(node.name for node in backward)
        # Updates read what is to be conjugated, or negated, as it lies.
        found = {
            name: made.resolve_conj().resolve_neg()
            for name, made in zip(self._trained, gradients, strict=True)
            if made is not None
        }
        self.have_gradient.extend(found)
        return list(found.values())


def _fake_copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return, under the fake mode, what state.dense_copy gives."""
    layout = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return torch.empty_like(layout, memory_format=torch.preserve_format)


def _graph_being_traced() -> fx.Graph:
    mode = get_proxy_mode()
    assert mode is not None, "only called while make_fx traces"
    graph: fx.Graph = mode.tracer.graph
    return graph


def _outputs(module: fx.GraphModule) -> tuple[fx.Node, list[fx.Node]]:
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    result, *gradients = tree_leaves(output.args[0])
    return result, gradients


@contextmanager
def _mode(model: nn.Module, *, training: bool, evaluated: Collection[nn.Module]) -> Iterator[None]:
    """Put every module into training or evaluation mode, and back at the end."""
    before = {module: module.training for module in model.modules()}
    model.train(training)
    for module in evaluated:
        module.eval()
    try:
        yield
    finally:
        for module, mode in before.items():
            module.training = mode
