"""How the private cluster's worker is to be started, kept in its folder from one `up` to the next."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

OPTIONS_FILE = "worker.options"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of `tensile-db worker`; None leaves one to the worker."""

    device: str = "cpu"
    memory_nbytes: int | None = None
    link_bytes_per_s: int | None = None
    threads: int | None = None

    def arguments(self) -> list[str]:
        """Return them as `tensile-db worker` takes them."""
        arguments = ["--device", self.device]
        for name, value in (
            ("--memory", self.memory_nbytes),
            ("--link", self.link_bytes_per_s),
            ("--threads", self.threads),
        ):
            if value is not None:
                arguments += [name, str(value)]
        return arguments


def remember(folder: Path, options: WorkerOptions) -> None:
    """Keep the options of a worker that has been started."""
    (folder / OPTIONS_FILE).write_text(json.dumps(asdict(options)) + "\n")


def recall(folder: Path) -> WorkerOptions:
    """Return the options of the worker that was started last; the usual ones where none are known."""
    try:
        return WorkerOptions(**json.loads((folder / OPTIONS_FILE).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        # Of another version, or damaged: no reason not to start.
        return WorkerOptions()
