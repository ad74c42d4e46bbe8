"""`tensile-db import-weights` and `export-weights`: from files into the catalog, and back."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tensile_db.commands.console import out, step
from tensile_db.commands.files import check_writable, writing
from tensile_db.commands.private import DEFAULT_FOLDER, Folder, running_dsn
from tensile_db.errors import InvalidRequest, format_nbytes

if TYPE_CHECKING:
    from sqlalchemy import Connection

T = TypeVar("T")

_LONGEST_NAME = 200


def import_weights(
    architecture: Annotated[
        str,
        typer.Argument(
            metavar="ARCHITECTURE",
            help="The network that they are of, by timm's name, with its tag or without.",
        ),
    ],
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help=".safetensors, or a state dict that torch.save has written."),
    ],
    folder: Folder = DEFAULT_FOLDER,
    dsn: Annotated[
        str | None,
        typer.Option(
            help="The database, as a member of tensile_admin or a superuser; default: the private cluster's."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What trainings call them; default: ARCHITECTURE as it is given.")
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=8192,
            help="Side of the images to make them for; default: an exported model's, else what timm says.",
        ),
    ] = None,
    outputs: Annotated[
        int | None,
        typer.Option(
            min=0, help="How many outputs the file's network has, where neither it nor timm tells; 0: none."
        ),
    ] = None,
    *,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace those of that name; trainings that wait for them fail.")
    ] = False,
) -> None:
    """Bring pretrained weights into a database, for trainings of all roles to start from.

    Those of the layer that gives the outputs are left out: a training has classes of its own.
    """
    called = architecture if name is None else name
    if not called.strip() or len(called) > _LONGEST_NAME:
        raise InvalidRequest(
            f"pretrained weights cannot be called {called!r}",
            hint=f"Choose a name of 1 to {_LONGEST_NAME} characters.",
        )
    database = running_dsn(folder) if dsn is None else dsn
    with step(f"reading {file}"):
        # It tells of what is meant to be so.
        logging.getLogger("timm").setLevel(logging.ERROR)
        from tensile_db.capture.networks.timm_weights import load
        from tensile_db.catalog import pretrained
        from tensile_db.worker.jobs.checkpoints import to_stored

        weights = load(file, architecture, image_size=image_size, num_outputs=outputs)
    nbytes = sum(tensor.nbytes for tensor in weights.state.values())
    with step(f"writing {format_nbytes(nbytes)}"):
        added = _in_database(
            database,
            lambda conn: pretrained.add(
                conn,
                name=called,
                architecture=weights.architecture,
                size=weights.size,
                mean=weights.mean,
                scale=weights.scale,
                nbytes=nbytes,
                stored=to_stored(weights.state),
                replace=replace,
            ),
        )
    if added is None:
        raise InvalidRequest(
            f'pretrained weights "{called}" are there already',
            hint="Choose another name with --name, or take their place with --replace.",
        )
    height, width = weights.size
    out.print(
        f'pretrained weights "{called}" of {weights.architecture}, for images of {height} x {width}',
        soft_wrap=True,
        markup=False,
    )


def export_weights(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Where to write them, as safetensors; replaced where it is there."
        ),
    ],
    folder: Folder = DEFAULT_FOLDER,
    dsn: Annotated[
        str | None,
        typer.Option(help="The database, as a role that may use the model; default: the private cluster's."),
    ] = None,
    version: Annotated[
        int | None, typer.Option(min=1, help="Its version; default: the pinned one, else the newest.")
    ] = None,
) -> None:
    """Write a model's weights to a file, by PyTorch's names.

    The file's metadata say, as JSON, what else the model is: its architecture, classes and features.
    """
    check_writable(file, ())
    database = running_dsn(folder) if dsn is None else dsn
    with step(f"reading {model}"):
        from tensile_db.catalog import models
        from tensile_db.commands.exporting import write_file

        def read(conn: "Connection") -> str:
            found = models.find_by_name(conn, model, version)
            with models.read_weights(conn, found.id) as stored, writing(file):
                nbytes = write_file(file, found, stored)
            return f'model "{found.name}", version {found.version}: {format_nbytes(nbytes)} in {file}'

        said = _in_database(database, read)
    out.print(said, soft_wrap=True, markup=False)


def _in_database(dsn: str, work: "Callable[[Connection], T]") -> T:
    from tensile_db.catalog.engine import in_transaction, make_engine

    engine = make_engine(dsn, application_name="tensile_db weights", pool_size=1)
    try:
        return in_transaction(engine, work)
    finally:
        engine.dispose()
