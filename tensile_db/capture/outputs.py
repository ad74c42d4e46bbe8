"""What a network returns: a row of so many outputs for each row of its input, or it is refused."""

import torch

from tensile_db.capture.networks.own_errors import is_function, named
from tensile_db.errors import InvalidRequest


def require_outputs(output: object, *, rows: int, num_outputs: int | None, architecture: str | None) -> None:
    """Raise InvalidRequest unless a network returned a tensor of (rows, num_outputs).

    rows: one for each target.  num_outputs: as was asked for; None: any number.
    """
    if not isinstance(output, torch.Tensor) or output.dim() != 2 or output.shape[0] != rows:
        if is_function(architecture):
            raise InvalidRequest(
                f"{named(architecture)} returns {described(output)} where {rows} rows of outputs are due",
                hint="It must return as many rows of outputs for each row of any batch.",
            )
        raise InvalidRequest(
            f"{named(architecture)} does not return one row of outputs for each row of its input:"
            f" it returns {described(output)} for {rows} rows",
            hint="Use an architecture that classifies whole rows or images; one that returns a single number"
            " for each returns it as a row of one, e.g. by unsqueeze(1).",
        )
    if num_outputs is not None and output.shape[1] != num_outputs:
        raise InvalidRequest(
            f"{named(architecture)} returns {output.shape[1]} outputs a row,"
            f" {num_outputs} {'was' if num_outputs == 1 else 'were'} asked for",
            hint="Its last layer must have as many outputs as num_outputs, which it is built with, says.",
        )


def described(output: object) -> str:
    """Return what a network returned, for a sentence."""
    if isinstance(output, torch.Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    return "None" if output is None else f"a {type(output).__name__}"
