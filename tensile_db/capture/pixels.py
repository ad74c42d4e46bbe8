"""Images that come as bytes, made the network's input within the step.

They travel to the device as they are stored, in a quarter of the bytes, and what is made of them there is an
activation as any other.  The bits are those of data/features.py, which does the same on the host: every
operation rounds as IEEE 754 says.

Source: ours.
"""

from collections.abc import Mapping, Sequence

import torch

from tensile_db.capture.trace import Layout, Prepare


def bytes_for_features(
    batch: Mapping[str, Layout], channels: int | None
) -> tuple[dict[str, Layout], Prepare | None]:
    """Return the layouts of a batch whose images come as bytes, and what makes the network's batch of them.

    batch: the network's, "features" being [rows, channels, height, width].  channels: of the images; None:
    they come as the network takes them, and nothing is made of them.
    The batch then ends with "normalisation", float32 [2, channels, 1, 1]: of each channel mean and scale.
    """
    if channels is None:
        return dict(batch), None
    rows, network_channels, height, width = batch["features"].shape
    layouts = {
        **batch,
        "features": Layout(shape=(rows, channels, height, width), dtype=torch.uint8),
        "normalisation": Layout(shape=(2, channels, 1, 1), dtype=torch.float32),
    }

    def prepare(given: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        images, *rest, normalisation = given
        return [network_input(images, normalisation, network_channels), *rest]

    return layouts, prepare


def network_input(images: torch.Tensor, normalisation: torch.Tensor, channels: int) -> torch.Tensor:
    """Return (images - mean) / scale, float32, with as many channels as the network has.

    images, normalisation: as `bytes_for_features` says.  Grey images fill all channels alike.
    """
    made = images.to(torch.float32)
    made.sub_(normalisation[0]).div_(normalisation[1])
    return made if made.shape[1] == channels else made.expand(-1, channels, -1, -1).contiguous()
