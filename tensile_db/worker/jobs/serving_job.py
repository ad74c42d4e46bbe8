"""Jobs that use a model: its network going forward over a source's rows."""

from collections.abc import Callable

from tensile_db.capture.precision import precision_of
from tensile_db.catalog import graphs, models, plans
from tensile_db.catalog.models import ModelRow
from tensile_db.errors import UndefinedModel
from tensile_db.latency.ewma import LatencyAverage
from tensile_db.worker.controller import PlannerInput
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.jobs import capturing, checkpoints
from tensile_db.worker.jobs.job import Job
from tensile_db.worker.jobs.serving import ServingWork, evaluate, predict
from tensile_db.worker.jobs.serving_rows import open_serving_rows
from tensile_db.worker.mailbox import PlanOrder

#: Rows that go forward together, unless the request says otherwise.
_BATCH_SIZE = 64


def run_prediction(job: Job) -> None:
    """Predict a source's rows."""
    _serve(job, predict, phase="predicting", with_target=False)


def run_evaluation(job: Job) -> None:
    """Measure a model on rows whose target is known."""
    _serve(job, evaluate, phase="validating", with_target=True)


def _serve(
    job: Job,
    serve: Callable[[Job, ServingWork, PlanOrder, JobMemory], None],
    *,
    phase: str,
    with_target: bool,
) -> None:
    job.enter("reading")
    row, model = job.row, find_model(job)
    rows = open_serving_rows(job, model, batch_size=row.batch_size or _BATCH_SIZE, with_target=with_target)
    job.records.progress(rows_total=len(rows))
    job.enter("capturing")
    network = capturing.build(
        model.architecture,
        num_outputs=1 if model.classes is None else len(model.classes),
        input_shape=rows.input_shape,
        # Its weights are replaced by the model's.
        seed=0,
        options=model.features["options"],
    )
    device = job.setting.device
    step = capturing.forward_step(
        network,
        batch_shape=(rows.batch_size, *rows.input_shape),
        device=device.torch_device,
        precision=precision_of(model.features["options"]),
    )
    job.records.later(
        lambda conn: graphs.ensure(
            conn,
            step.graph,
            architecture=model.architecture,
            batch_size=rows.batch_size,
            image_size=rows.input_shape[-1] if len(rows.input_shape) == 3 else None,
            optimizer=None,
        )
    )
    state, plan_version = job.records.must(
        lambda conn: (
            checkpoints.from_stored(models.read_weights(conn, model.id)),
            plans.newest_version(conn, row.id),
        )
    )
    work = ServingWork(
        step=step,
        rows=rows,
        batch_size=rows.batch_size,
        classes=model.classes,
        scaling=rows.scaling,
        averages=LatencyAverage(job.predict(step)),
        state=state,
        plan_version=plan_version,
    )
    order = job.admit(
        PlannerInput(
            graph=step.graph,
            latencies=work.averages,
            policy=row.policy,
            max_swapping_rate=float(row.options.get("max_swapping_rate", 1.0)),
            memory_limit_nbytes=row.memory_limit_nbytes,
        ),
        phase=phase,
    )
    with job.on_device(order, state=work.state, seed=0) as memory:
        serve(job, work, order, memory)


def find_model(job: Job) -> ModelRow:
    """Return the model that the job uses.  Raises UndefinedModel."""
    model_id = job.row.model_id
    model = None if model_id is None else job.records.must(lambda conn: models.find(conn, model_id))
    if model is None:
        raise UndefinedModel(
            f'the model "{job.row.model}" is no more', hint="tensile_models() lists those that are."
        )
    return model
