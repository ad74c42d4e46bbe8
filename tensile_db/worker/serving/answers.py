"""From a network's outputs to what sessions get."""

import json
from collections.abc import Sequence
from typing import Any

import torch

from tensile_db.catalog.serving import Answer
from tensile_db.data.labels import label_text
from tensile_db.data.target_scaling import TargetScaling
from tensile_db.worker.jobs.predicting import decode, finite_rows, not_finite
from tensile_db.worker.serving.inbox import Row


def answers_for(
    rows: Sequence[Row], outputs: torch.Tensor, classes: Sequence[Any] | None, scaling: TargetScaling | None
) -> list[Answer]:
    """Return the answers to requests; outputs: [rows or more, classes or 1], on the host."""
    outputs = outputs[: len(rows)]
    predictions = [text for text, _ in decode(outputs, classes, scaling)]
    finite = finite_rows(outputs)
    answers = []
    for place, row in enumerate(rows):
        if not finite[place]:
            answers.append(Answer.of_error(row.request.id, not_finite(None)))
            continue
        probabilities = None
        if row.request.wants_probabilities:
            assert classes is not None, "a model of numbers refuses to tell probabilities"
            values = outputs[place].double().softmax(dim=0).tolist()
            probabilities = json.dumps(
                {label_text(label): value for label, value in zip(classes, values, strict=True)}
            )
        answers.append(
            Answer(request=row.request.id, prediction=predictions[place], probabilities=probabilities)
        )
    return answers
