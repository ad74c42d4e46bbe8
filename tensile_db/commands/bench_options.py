"""What the benchmarks' commands have in common: options, and the writing of results."""

import itertools
import os
import re
import shlex
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensile_db.commands.console import err, out
from tensile_db.commands.files import existing_part, parse_folder, writing
from tensile_db.commands.own_networks import use_network
from tensile_db.commands.own_policies import use_policy
from tensile_db.errors import InvalidRequest, UnknownName

if TYPE_CHECKING:
    from tensile_db.bench.networks.captures import Captures

#: All of them, told without PyTorch's import, which takes seconds.
WORKLOAD_NAMES = (
    "vgg16, vgg19, resnet50, resnet101, resnet152, inception_v3, inception_v4, densenet121, bert,"
    " transformer, vit, gpt, gcn, unet"
)
#: The paper's networks (TENSILE section V-A).
FIVE = "vgg16,inception_v3,inception_v4,resnet50,densenet121"
#: Where results that are committed lie, from the repository's root.
RESULTS = Path("bench/results")
#: Of a name of results, in bytes: file systems take 255 with what is put behind it, as "_frontier.svg".
_LONGEST_NAME = 200


def check_folder(text: str | Path) -> Path:
    """Return a folder that can be written into, or made; raise InvalidRequest."""
    folder = parse_folder(text)
    with writing(folder):
        # Tried, for permissions say too little: root has all, also on what is mounted read-only.
        tempfile.TemporaryFile(dir=existing_part(folder)).close()
    return folder


def _check_name(name: str | None) -> str | None:
    """Return a name that files can have; raise InvalidRequest."""
    if name is None or (name and "/" not in name and len(os.fsencode(name)) <= _LONGEST_NAME):
        return name
    raise InvalidRequest(
        f'--name is "{name}"',
        hint=f"Give 1 to {_LONGEST_NAME} bytes without a slash; the folder is named with --out.",
    )


def _check_networks(text: str) -> str:
    """Return names of workloads, one at least; raise InvalidRequest or UnknownName."""
    for name in _some(text, "vgg16,resnet50"):
        use_network(name)
    return text


def _check_salus(text: str) -> str:
    """Return names of Salus' workloads, one at least; raise InvalidRequest or UnknownName."""
    from tensile_db.bench.networks.salus import SALUS

    for name in _some(text, "resnet50_50,superres_128"):
        if name not in SALUS:
            raise UnknownName("workload of Salus' table 3", name, SALUS)
    return text


def _some(text: str, example: str) -> list[str]:
    """Return names of networks; raise InvalidRequest where there are none."""
    found = names(text)
    if not found:
        raise InvalidRequest(
            f'--networks is "{text}"', hint=f"Give names with commas between, e.g. {example}."
        )
    return found


def _check_percents(text: str) -> str:
    """Return percents, or nothing; raise InvalidRequest."""
    if text:
        percents(text)
    return text


def _check_policies(text: str) -> str:
    """Return names of policies, or nothing for all; raise InvalidRequest or UnknownName."""
    policies(text)
    return text


# Callbacks refuse before anything is computed: what takes hours would be lost when it is written.
Device = Annotated[
    str,
    typer.Option(help="sim:NAME (a6000, h200, p100, rtx2080ti, titanrtx), sim:FILE.json, cpu, or cuda:0."),
]
Networks = Annotated[
    str,
    typer.Option(
        callback=_check_networks,
        help=f"With commas between, of {WORKLOAD_NAMES}, timm's models, aliases, mlp, and your own,"
        " module:function.",
    ),
]
SalusNetworks = Annotated[
    str, typer.Option("--networks", callback=_check_salus, help="Of Salus' table 3, with commas between.")
]
Policies = Annotated[
    str,
    typer.Option(
        callback=_check_policies,
        help='Names of policies, or module:function, with commas between; "": all of ours.',
    ),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Rows an iteration.")]
Optimizer = Annotated[str, typer.Option(help="sgd, momentum, adam or adamw.")]
Seed = Annotated[int, typer.Option(help="Of all that is drawn.")]
Out = Annotated[
    Path, typer.Option("--out", metavar="DIR", parser=check_folder, help="Where results are written.")
]
Name = Annotated[
    str | None,
    typer.Option(callback=_check_name, help="Of the results' files; default: benchmark and device."),
]
#: Where the default is the benchmark's name.
NameWithDefault = Annotated[str, typer.Option(callback=_check_name, help="Of the results' files.")]
Cache = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        parser=check_folder,
        help="Keep captured graphs there, for the next run, but of networks of your own.",
    ),
]
Budgets = Annotated[
    str,
    typer.Option(
        callback=_check_percents,
        help="Percent of eager's peak, the least that will do on top; default: tenths.",
    ),
]


def captures(folder: Path | None, device: str) -> "Captures":
    """Return what captures for such a device, and keeps captures where it was given a folder."""
    from tensile_db.bench.machines import kernel_threads, torch_device
    from tensile_db.bench.networks.captures import Captures

    return Captures(folder=folder, device=torch_device(device), threads=kernel_threads(device))


def names(text: str) -> list[str]:
    """Return what stands between commas, each once, in the order given."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def numbers(text: str, option: str) -> list[int]:
    """Return whole numbers from 1 up; raise InvalidRequest."""
    found = names(text)
    if not found or not all(number.isdecimal() and int(number) > 0 for number in found):
        raise InvalidRequest(
            f'{option} is "{text}"', hint="Give whole numbers with commas between, e.g. 1,2,3."
        )
    return [int(number) for number in found]


def percents(text: str) -> list[int]:
    """Return the budgets that are asked for, none where nothing was; raise InvalidRequest."""
    found = names(text)
    if (text and not found) or not all(re.fullmatch("[1-9][0-9]?|100", each) for each in found):
        raise InvalidRequest(
            f'--budgets is "{text}"', hint="Give whole percents of eager's peak from 1 to 100, e.g. 50,30."
        )
    return [int(each) for each in found]


def policies(text: str) -> list[str]:
    """Return the policies asked for, all where nothing was; raise InvalidRequest or UnknownName."""
    from tensile_db.scheduler.policies import POLICIES

    chosen = names(text)
    if text and not chosen:
        raise InvalidRequest(
            f'--policies is "{text}"',
            hint="Give names with commas between, e.g. tensile,auto, or nothing for all.",
        )
    for name in chosen:
        # Results leave out what cannot be planned, and may not say why.
        use_policy(name, tell)
    # Those of others are there since they were asked for.
    return chosen or [name for name in POLICIES if ":" not in name]


def tell(what: str) -> None:
    """Say what is being done."""
    err.print(f"... {what}", soft_wrap=True, markup=False)


def known(folder: Path, name: str | None, bench: str, device: str) -> dict[str, Any] | None:
    """Return the document that `write` would replace; None where there is none."""
    from tensile_db.bench.reports.results import read

    path = folder / f"{_name_of(bench, device) if name is None else name}.json"
    return read(path) if path.exists() else None


def write(document: dict[str, Any], folder: Path, name: str | None, *, has_former: bool = False) -> None:
    """Write a document in every form, and print its tables.

    has_former: the document was made from what it replaces, which is in it and need not be kept.
    """
    from tensile_db.bench.reports.provenance import provenance
    from tensile_db.bench.reports.results import TABLES, write

    document = provenance(_command()) | document
    if name is None:
        name = _name_of(document["bench"], document["device"]["name"])
    with writing(folder):
        kept = None if has_former else _keep_others(document["command"], folder / f"{name}.json")
        files = write(document, folder, name)
    # Not through rich: tables are Markdown.
    typer.echo(TABLES[document["bench"]](document))
    out.print(f"written to {', '.join(str(path) for path in files)}", soft_wrap=True)
    if kept is not None:
        err.print(f"the results of another command that were there are kept in {kept}", soft_wrap=True)


def _keep_others(command: str, path: Path) -> Path | None:
    """Move results of another command, which may have taken hours, out of the way; return where to."""
    from tensile_db.bench.reports.results import read

    if not path.exists():
        return None
    # What cannot be read, or is no file, is nobody's to throw away, nor to lose the results for.
    with suppress(InvalidRequest, RecursionError):
        if path.is_file() and read(path).get("command") == command:
            return None
    numbered = (path.with_suffix(f".before{number}.json") for number in itertools.count(1))
    kept = next(each for each in numbered if not each.exists())
    path.rename(kept)
    return kept


def _command() -> str:
    """Return the command that runs, without its folders, which are of one machine and bear on no results."""
    words = iter(["tensile-db", *sys.argv[1:]])
    kept = []
    for word in words:
        if word in ("--out", "--cache"):
            next(words, None)
        elif not word.startswith(("--out=", "--cache=")):
            kept.append(word)
    return shlex.join(kept)


def _name_of(bench: str, device: str) -> str:
    """Return what results are called that are not given a name."""
    name = Path(device.removeprefix("sim:")).name.removesuffix(".json")
    return f"{bench.replace('-', '_')}_{name.replace(':', '')}"
