"""What sessions get for outputs of a network that are no numbers."""

import json

import numpy as np
import torch

from tensile_db.catalog.serving import Request
from tensile_db.data.target_scaling import TargetScaling
from tensile_db.worker.serving.answers import answers_for
from tensile_db.worker.serving.inbox import Row


def rows(count):
    return [
        Row(
            request=Request(id=number, model=1, form="array", features=b"", wants_probabilities=True),
            features=np.zeros(1, np.float32),
        )
        for number in range(count)
    ]


def test_a_row_whose_output_is_no_number_gets_an_error_and_the_others_their_answers():
    outputs = torch.tensor([[0.0, 1.0], [float("nan"), 0.0], [float("inf"), 0.0], [2.0, 0.0]])
    answers = answers_for(rows(4), outputs, ["down", "up"], None)
    assert [answer.prediction for answer in answers] == ["up", None, None, "down"]
    assert [answer.sqlstate for answer in answers] == [None, "22000", "22000", None]
    assert all(answer.message == "the network's output is NaN or infinite" for answer in answers[1:3])
    assert sum(json.loads(answers[0].probabilities).values()) == 1.0


def test_so_does_one_of_a_number():
    scaling = TargetScaling(mean=10.0, scale=2.0)
    (asked,) = rows(1)
    plain = Row(
        request=Request(id=0, model=1, form="array", features=b"", wants_probabilities=False),
        features=asked.features,
    )
    (fine,) = answers_for([plain], torch.tensor([[0.5]]), None, scaling)
    (wrong,) = answers_for([plain], torch.tensor([[float("inf")]]), None, scaling)
    assert (float(fine.prediction), fine.sqlstate) == (11.0, None)
    assert (wrong.prediction, wrong.sqlstate) == (None, "22000")
