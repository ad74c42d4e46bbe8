"""A job's rows as its submitter may read them, and what names each."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensile_db.catalog.engine import SETTINGS, connect
from tensile_db.data.columns import Form, Nulls, Variable
from tensile_db.data.snapshot import Reading, describe_source, read
from tensile_db.data.source import Source
from tensile_db.data.stored_rows import StoredRows, key_texts, open_rows
from tensile_db.udf.options import check_option
from tensile_db.worker.jobs.caches import cache_name
from tensile_db.worker.jobs.job import Job


def read_rows(
    job: Job,
    *,
    features: Sequence[str] | None,
    target: str | None,
    wants_target: bool,
    task: Any,
    nulls: Nulls,
    null_targets: Nulls,
) -> tuple[Source, StoredRows]:
    """Read the source's rows as its submitter; the rows so far stand in the job's row.

    nulls: what becomes of rows in which a feature, a number or text, is NULL; null_targets: in which the
    target is.

    An attempt after the first takes the rows that an earlier one has read on this machine, if it did; a trial
    those that another of its search's has.
    """

    def progress(count: int) -> None:
        job.check()
        job.records.progress(rows_total=count)

    # A row may have come into the catalog past the functions.
    for option in ("key", "held_out", "nulls", "null_targets"):
        if option in job.row.options:
            check_option(option, job.row.options[option])
    reading = Reading(
        relation=job.row.source_oid,
        submitter=job.row.submitted_by,
        settings=job.row.settings,
        features=features,
        target=target,
        wants_target=wants_target,
        task=task,
        known_as=job.row.source_name,
        nulls=nulls,
        null_targets=null_targets,
        key=job.row.options.get("key"),
        held_out=job.row.options.get("held_out") if wants_target and job.row.kind != "evaluate" else None,
    )
    folder = job.folder / "rows"
    with (
        job.making_files(),
        connect(
            job.setting.dsn, application_name="tensile_db reader", settings=SETTINGS, autocommit=True
        ) as connection,
    ):
        earlier = open_rows(folder) if job.row.attempt > 1 or job.shares_folder else None
        if earlier is not None:
            source = describe_source(connection, reading)
            if _are_of(source, earlier):
                return source, earlier
        found = read(connection, reading, folder, progress=progress, check=job.check)
    # Where the job goes on best, or another trial of its search.
    job.records.note(rows_cache=cache_name(job.setting.cache_dir))
    return found


def null_targets_of(options: Mapping[str, Any], otherwise: Nulls) -> Nulls:
    """Return what becomes of rows whose target is NULL; options: of the training."""
    return Nulls.LEFT_OUT if options.get("null_targets") == "skip" else otherwise


def row_name(source: Source, stored: StoredRows) -> Callable[[int], str]:
    """Return what names a row in messages, by its place."""

    def name(row: int) -> str:
        if source.key is None:
            return f"number {row + 1}"
        return f"{source.key.name}={key_texts(stored.values[-1], range(row, row + 1))[0]}"

    return name


def _are_of(source: Source, stored: StoredRows) -> bool:
    """Tell whether stored rows have the columns that the source has now."""
    return [isinstance(values, Variable) for values in stored.values] == [
        column.form in (Form.BYTES, Form.TEXT) for column in source.columns
    ]
