"""The tour: from an empty cluster to trained models, in five steps on one worker.

It does what a user would do, with psql and SQL; what it sums up at the end it reads from the catalog.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.rows import tuple_row
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tensile_db.demo.images import load_images
from tensile_db.demo.picture import draw_memory
from tensile_db.demo.results import (
    JobResult,
    device_peak,
    newest_job,
    read_epochs,
    read_jobs,
    read_timeline,
    training_jobs_after,
)
from tensile_db.demo.sampling import MemoryWatch
from tensile_db.demo.sessions import Psql, Statement
from tensile_db.demo.tables import fill_table
from tensile_db.errors import BadData, DeviceOutOfMemory, format_nbytes

_COLORS = ("cyan", "magenta", "green", "yellow")


@dataclass(frozen=True, slots=True, kw_only=True)
class TourSettings:
    """How much of everything: chosen for two cores and less than ten minutes."""

    #: Rows of images_table; every fifth is held out.
    rows: int = 500
    #: Rows of images_new, which no model has seen.
    new_rows: int = 100
    #: The network that is trained alone first, and predicts in the end.
    alone: str = "vgg16"
    epochs: int = 3
    batch_size: int = 16
    #: Rows of images_few, on which four networks train at once.
    few_rows: int = 96
    few_batch_size: int = 16
    #: Network and the image size it trains at; Inception's kernels need 75 pixels a side.
    together: tuple[tuple[str, int], ...] = (
        ("vgg16", 32),
        ("resnet50", 64),
        ("inception_v3", 80),
        ("densenet121", 64),
    )
    #: What the worker may use for all of them together.
    memory_nbytes: int = 1700 * 2**20


class Tour:
    """One tour."""

    def __init__(self, *, console: Console, psql: Psql, dsn: str, settings: TourSettings) -> None:
        """Take psql and dsn as the user who submits the jobs."""
        self._console = console
        self._psql = psql
        self._dsn = dsn
        self._settings = settings
        self._begin_s = time.monotonic()

    def run(self, picture: Path) -> None:
        """Take every step.  Raises TensileError where one fails, or shows what it should not."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            before = newest_job(connection)
            self._fill_tables(connection)
            self._train_alone(connection, before)
            alone = training_jobs_after(connection, before)
            self._train_together(connection, alone, picture)
            self._predict(connection)
            self._heading("What the catalog says")
            self._console.print(
                "tensile.jobs and tensile.plan_summary; of each job the plan with the lowest peak."
            )
            results = read_jobs(connection, training_jobs_after(connection, before))
            self._console.print(_jobs_table(results))
            self._console.print(f"Memory timeline: {picture}", soft_wrap=True)

    def _fill_tables(self, connection: psycopg.Connection) -> None:
        settings = self._settings
        self._heading("Real images into tables")
        connection.execute("DROP VIEW IF EXISTS images_few")
        images = load_images(settings.rows + settings.new_rows)
        # The digits are fewer: then both tables shrink alike.
        rows = len(images) * settings.rows // (settings.rows + settings.new_rows)
        for name, part in (
            ("images_table", images.part(0, rows)),
            ("images_new", images.part(rows, len(images))),
        ):
            with connection.transaction():
                nbytes = fill_table(connection, name, part)
            self._console.print(f"  {name}: {len(part)} rows, {format_nbytes(nbytes)}, from {images.source}")
        connection.execute(
            f"CREATE VIEW images_few AS SELECT * FROM images_table WHERE id <= {settings.few_rows}"
        )
        self._query(
            connection, "SELECT id, label, length(image) AS bytes FROM images_table ORDER BY id LIMIT 3"
        )

    def _train_alone(self, connection: psycopg.Connection, before: int) -> None:
        settings = self._settings
        self._heading(f"Train {settings.alone} from psql")
        statement = Statement(
            name=settings.alone,
            sql=f"SELECT * FROM tensile_train('{settings.alone}', 'images_table',"
            f" epochs => {settings.epochs}, batch_size => {settings.batch_size},"
            # Without dropout, so few iterations get further.
            " optimizer => 'adam', learning_rate => 0.0001, validation => 0.2,"
            " options => '{\"dropout\": 0}')",
        )
        self._console.print(Text(f"demo=> {statement.sql};", style="bold"), soft_wrap=True)
        self._psql.run(statement, lambda line: self._console.print(Text(line), soft_wrap=True), expanded=True)
        (job,) = training_jobs_after(connection, before)
        table = Table("epoch", "training loss", "held-out loss", "held-out accuracy")
        epochs = read_epochs(connection, job)
        for epoch in epochs:
            table.add_row(
                str(epoch.epoch),
                _number(epoch.loss),
                _number(epoch.validation_loss),
                _percent(epoch.accuracy),
            )
        self._console.print(table)
        classes = self._value(connection, "SELECT count(DISTINCT label) FROM images_table")
        best = max((epoch.accuracy or 0.0 for epoch in epochs), default=0.0)
        learned = f"{best:.0%} of the held-out rows, where chance gives {1 / classes:.0%}"
        if best < 2 / classes:
            raise BadData(
                f"{settings.alone} did not learn: {learned}",
                hint="Run the demo again; if it fails again, tensile.training_metrics tells what happened.",
            )
        self._console.print(f"It learned: {learned}.")

    def _train_together(self, connection: psycopg.Connection, alone: Sequence[int], picture: Path) -> None:
        settings = self._settings
        self._heading(f"Train {len(settings.together)} networks at once")
        self._console.print(
            f"From as many connections, in {format_nbytes(settings.memory_nbytes)} of device memory.",
            soft_wrap=True,
        )
        statements = [
            Statement(
                name=name,
                sql=f"SELECT job_id, state, loss, seconds, peak_bytes, saved FROM tensile_train('{name}',"
                f" 'images_few', model => '{name}_few', epochs => 1, batch_size => {settings.few_batch_size},"
                f" options => '{{\"image_size\": {size}}}')",
            )
            for name, size in settings.together
        ]
        for statement in statements:
            self._console.print(Text(f"demo=> {statement.sql};", style="bold"), soft_wrap=True)
        colors = {statement.name: color for statement, color in zip(statements, _COLORS, strict=False)}

        def tell(name: str, line: str) -> None:
            self._console.print(Text(f"{name:13} ", style=colors.get(name, "")) + line, soft_wrap=True)

        with MemoryWatch(self._dsn) as watch:
            self._psql.run_together(statements, tell)
        jobs = read_jobs(connection, training_jobs_after(connection, max(alone)))
        peak, eager = device_peak(connection, [job.job_id for job in jobs]), _eager(jobs)
        self._console.print(
            f"All {len(jobs)} finished.  Eager PyTorch would have needed {format_nbytes(eager)} for them;"
            f" the worker's jobs never held more than {format_nbytes(peak)} of"
            f" {format_nbytes(settings.memory_nbytes)}.",
            soft_wrap=True,
        )
        if peak > settings.memory_nbytes:
            raise DeviceOutOfMemory(wanted_nbytes=0, used_nbytes=peak, capacity_nbytes=settings.memory_nbytes)
        draw_memory(
            picture,
            samples=watch.samples,
            memory_nbytes=settings.memory_nbytes,
            jobs=jobs,
            timelines={
                job.job_id: read_timeline(connection, job.job_id, job.tightest_version) for job in jobs
            },
        )

    def _predict(self, connection: psycopg.Connection) -> None:
        self._heading("Predict a table that no model has seen")
        connection.execute("DROP TABLE IF EXISTS predicted")
        self._query(
            connection,
            "CREATE TABLE predicted AS"
            f" SELECT * FROM tensile_predict('{self._settings.alone}', 'images_new')",
        )
        self._query(
            connection,
            "SELECT n.id, n.label, p.prediction, round(p.probability::numeric, 3) AS probability\n"
            "FROM images_new n JOIN predicted p ON p.row_key = n.id::text ORDER BY n.id LIMIT 8",
        )
        self._query(
            connection,
            "SELECT count(*) AS rows, round(avg((p.prediction = n.label)::int), 3) AS accuracy\n"
            "FROM images_new n JOIN predicted p ON p.row_key = n.id::text",
        )

    def _heading(self, title: str) -> None:
        self._console.print()
        elapsed_s = int(time.monotonic() - self._begin_s)
        self._console.rule(
            f"[bold]{title}[/] [dim]{elapsed_s // 60}:{elapsed_s % 60:02} min[/]", align="left"
        )

    def _query(self, connection: psycopg.Connection, statement: str) -> None:
        """Show a statement and its rows."""
        self._console.print(Text(f"demo=> {statement};", style="bold"), soft_wrap=True)
        cursor = connection.execute(statement.encode())
        if cursor.description is None:
            return
        table = Table(*(column.name for column in cursor.description))
        for row in cursor:
            table.add_row(*map(str, row))
        self._console.print(table)

    def _value(self, connection: psycopg.Connection, query: str) -> int:
        with connection.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])


def _eager(jobs: Sequence[JobResult]) -> int:
    return sum(job.vanilla_peak_nbytes for job in jobs)


def _jobs_table(jobs: Sequence[JobResult]) -> Table:
    """Return a column for each job, so that it fits a terminal of 80 columns."""
    table = Table(padding=0)
    table.add_column("job", no_wrap=True)
    for job in jobs:
        table.add_column(f"{job.job_id}\n{job.architecture}", justify="right", overflow="fold")
    rows: Sequence[tuple[str, Callable[[JobResult], str]]] = (
        ("iterations", lambda job: str(job.iterations)),
        ("seconds", lambda job: f"{job.seconds:.0f}"),
        ("accuracy", lambda job: _percent(job.accuracy)),
        ("eager peak", lambda job: format_nbytes(job.vanilla_peak_nbytes)),
        ("plans for", lambda job: "\n".join(job.reasons)),
        ("tightest:", lambda _: ""),
        (" planned", lambda job: format_nbytes(job.planned_peak_nbytes)),
        (" measured", lambda job: format_nbytes(job.measured_peak_nbytes)),
        (" saved", lambda job: _percent(_saved(job))),
        (" swapped", lambda job: format_nbytes(job.swap_nbytes)),
        (" recomputed", lambda job: str(job.recompute_count)),
    )
    for name, of in rows:
        table.add_row(name, *(of(job) for job in jobs))
    return table


def _saved(job: JobResult) -> float | None:
    return 1 - job.measured_peak_nbytes / job.vanilla_peak_nbytes if job.vanilla_peak_nbytes else None


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
