"""Forward steps of networks, captured once for all models that have the same one.  Safe for all threads."""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable

import torch

from tensile_db.capture.precision import precision_of
from tensile_db.capture.step import CapturedStep
from tensile_db.catalog.models import ModelRow
from tensile_db.worker.jobs import capturing

#: A step is some thousand small objects.
_KEPT = 128

#: From a batch's rows to the step.
Capture = Callable[[int], CapturedStep]


class ForwardSteps:
    """Those that were asked for last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: OrderedDict[tuple[object, ...], CapturedStep] = OrderedDict()

    def of(self, model: ModelRow, input_shape: tuple[int, ...], device: torch.device) -> Capture:
        """Return what captures a model's network going forward; input_shape: of one row."""
        num_outputs = 1 if model.classes is None else len(model.classes)
        options = model.features["options"]
        network = (model.architecture, num_outputs, input_shape, json.dumps(options, sort_keys=True), device)

        def capture(rows: int) -> CapturedStep:
            key = (*network, rows)
            with self._lock:
                if key in self._steps:
                    self._steps.move_to_end(key)
                    return self._steps[key]
            built = capturing.build(
                model.architecture,
                num_outputs=num_outputs,
                input_shape=input_shape,
                # Its weights are replaced by the model's.
                seed=0,
                options=options,
            )
            step = capturing.forward_step(
                built,
                batch_shape=(rows, *input_shape),
                device=device,
                precision=precision_of(options),
                num_outputs=num_outputs,
                architecture=model.architecture,
            )
            with self._lock:
                self._steps[key] = step
                while len(self._steps) > _KEPT:
                    self._steps.popitem(last=False)
            return step

        return capture
