"""Jobs that use a model: its network going forward over a source's rows."""

from collections.abc import Callable

from tensile_db.capture.precision import precision_of
from tensile_db.latency.ewma import LatencyAverage
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.handover import PlannerInput
from tensile_db.worker.jobs import capturing
from tensile_db.worker.jobs.job import Job
from tensile_db.worker.jobs.model_use import find_model, read_state, record_step
from tensile_db.worker.jobs.predicting import PredictingWork, evaluate, predict
from tensile_db.worker.jobs.predicting_rows import open_predicting_rows
from tensile_db.worker.mailbox import PlanOrder

#: Rows that go forward together, unless the request says otherwise.
_BATCH_SIZE = 64


def run_prediction(job: Job) -> None:
    """Predict a source's rows."""
    _use_model(job, predict, phase="predicting", with_target=False)


def run_evaluation(job: Job) -> None:
    """Measure a model on rows whose target is known."""
    _use_model(job, evaluate, phase="validating", with_target=True)


def _use_model(
    job: Job,
    use: Callable[[Job, PredictingWork, PlanOrder, JobMemory], None],
    *,
    phase: str,
    with_target: bool,
) -> None:
    job.enter("reading")
    row, model = job.row, find_model(job)
    rows = open_predicting_rows(job, model, batch_size=row.batch_size or _BATCH_SIZE, with_target=with_target)
    job.records.progress(rows_total=len(rows))
    job.enter("capturing")
    num_outputs = 1 if model.classes is None else len(model.classes)
    network = capturing.build(
        model.architecture,
        num_outputs=num_outputs,
        input_shape=rows.input_shape,
        # Its weights are replaced by the model's.
        seed=0,
        options=model.features["options"],
        check=job.check,
    )
    device = job.setting.device
    step = capturing.forward_step(
        network,
        batch_shape=(rows.batch_size, *rows.input_shape),
        device=device.torch_device,
        precision=precision_of(model.features["options"]),
        byte_channels=rows.byte_channels,
        num_outputs=num_outputs,
        architecture=model.architecture,
        check=job.check,
    )
    step = job.with_workspaces_of_parts(step)
    record_step(job, model, step, batch_size=rows.batch_size, input_shape=rows.input_shape)
    state, plan_version = read_state(job, model)
    work = PredictingWork(
        step=step,
        rows=rows,
        batch_size=rows.batch_size,
        classes=model.classes,
        scaling=rows.scaling,
        averages=LatencyAverage(job.predict(step)),
        state=state,
        plan_version=plan_version,
        all_classes=bool(row.options.get("all_classes")),
    )
    order = job.admit(
        PlannerInput(
            graph=step.graph,
            latencies=work.averages,
            policy=row.policy,
            max_swapping_rate=float(row.options.get("max_swapping_rate", 1.0)),
            memory_limit_nbytes=row.memory_limit_nbytes,
            repeats=work.repeats,
        ),
        phase=phase,
    )
    with job.on_device(order, state=work.state, seed=0) as memory:
        use(job, work, order, memory)
