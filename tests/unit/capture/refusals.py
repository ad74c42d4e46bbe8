"""What a network is refused with when its step is captured."""

import torch

from tensile_db.capture.optimizers import configure
from tensile_db.capture.train_step import capture_train_step
from tensile_db.errors import InvalidRequest


def refusal(model, dtype=torch.float32):
    """Return the refusal's sentence, to which there is a hint; None: the step of 4 rows of 6 is captured."""
    try:
        capture_train_step(
            model,
            batch_shape=(4, 6),
            target="classes",
            optimizer=configure("sgd"),
            features_dtype=dtype,
            architecture="mine",
        )
    except InvalidRequest as error:
        refused = error
    else:
        return None
    assert refused.hint
    return refused.message
