"""What each kind of job does, by the name in tensile.jobs.kind."""

from collections.abc import Callable, Mapping

from tensile_db.worker.jobs.job import Job
from tensile_db.worker.jobs.predicting_job import run_evaluation, run_prediction
from tensile_db.worker.jobs.training_job import run_explanation, run_training
from tensile_db.worker.searching.search_job import run_search
from tensile_db.worker.serving.serve_job import run_serving

KINDS: Mapping[str, Callable[[Job], None]] = {
    "train": run_training,
    "explain": run_explanation,
    "predict": run_prediction,
    "evaluate": run_evaluation,
    "search": run_search,
    "serve": run_serving,
}
