"""What stands behind each SQL function: operation -> function of a session and the call's arguments.

Runs inside PostgreSQL.  Results are JSON, in the shape that the SQL function turns into rows.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from tensile_db.errors import Forbidden, InvalidRequest, NotAtHome, WorkerUnavailable, format_value
from tensile_db.udf import wait
from tensile_db.udf.control import Arguments, cancel, job_of, pause, resume, set_priority
from tensile_db.udf.deleting import delete_jobs
from tensile_db.udf.doctor import doctor
from tensile_db.udf.models import model_of
from tensile_db.udf.notices import tell_of_pinned
from tensile_db.udf.own_changes import require_committed
from tensile_db.udf.pinning import pin_model, unpin_model
from tensile_db.udf.request import model_request, training_request
from tensile_db.udf.roles import grant_usage, grant_worker, set_quota
from tensile_db.udf.search import search_request, search_row
from tensile_db.udf.session import Session
from tensile_db.udf.source import missing_source, tell_changes

#: What does not go by anybody's number.
_ANYWHERE = frozenset({"doctor", "missing_source", "grant_usage", "grant_worker"})


def carry_out(session: Session, operation: str, arguments: Arguments) -> Any:
    """Return what an operation returns.  Raises what it does, and NotAtHome."""
    if operation not in _ANYWHERE and not session.value("SELECT tensile.is_at_home()"):
        raise NotAtHome
    return OPERATIONS[operation](session, arguments)


def train(session: Session, arguments: Arguments) -> list[dict[str, Any]]:
    """Train and wait; one row."""
    return [_summary(_run(session, _training(session, arguments)))]


def submit(session: Session, arguments: Arguments) -> int:
    """Queue a training job in the caller's transaction and return its id."""
    return _submit(session, _training(session, arguments))


def search(session: Session, arguments: Arguments) -> list[dict[str, Any]]:
    """Search and wait; one row, the best trial."""
    return [search_row(_run(session, _searching(session, arguments)))]


def submit_search(session: Session, arguments: Arguments) -> int:
    """Queue a search in the caller's transaction and return its id."""
    return _submit(session, _searching(session, arguments))


def wait_for(session: Session, arguments: Arguments) -> list[dict[str, Any]]:
    """Wait for a job that was submitted; one row, whose state tells whether the timeout came first."""
    timeout_s = arguments["timeout"]
    if isinstance(timeout_s, str) or (timeout_s is not None and timeout_s < 0):
        raise InvalidRequest(
            f"timeout is in seconds, from 0, got {format_value(timeout_s)}",
            hint="Leave it out to wait for the end.",
        )
    job = job_of(arguments)
    require_committed(session, job)
    return [_summary(wait.follow(session, job, timeout_s=timeout_s))]


def explain(session: Session, arguments: Arguments) -> list[dict[str, Any]]:
    """Have a worker capture and plan, and return its rows; a job that does not fit is an answer, too."""
    request = training_request(session, arguments)
    status = _run(session, request | {"kind": "explain"}, fails_with="53200")
    if status["state"] == "failed":
        said = ". ".join(filter(None, [status["error_message"], status["error_hint"]]))
        return [{"property": "fits", "value": "no", "unit": None, "detail": said}]
    rows: list[dict[str, Any]] = (status["result"] or {}).get("rows", [])
    return rows


def predict(session: Session, arguments: Arguments) -> int:
    """Have a worker predict, and return the job whose rows of tensile.predictions are the answer."""
    if not session.sees_other_commits():
        raise InvalidRequest(
            "tensile_predict cannot see a worker's rows in a transaction with one snapshot",
            hint="Call it at isolation level READ COMMITTED; in a view that is learned from, predict each row"
            " by tensile_predict(model, row).",
        )
    model = model_of(session, arguments["model"], arguments["version"])
    if arguments.get("all_classes") and model["task"] == "regression":
        raise InvalidRequest(
            f'the model "{model["name"]}" predicts a number, which has no probabilities',
            hint="Use tensile_predict.",
        )
    options = {name: arguments.get(name) for name in ("key", "all_classes")}
    request = model_request(session, model, arguments["source"], with_target=False, options=options)
    job: int = _run(session, request | {"kind": "predict"})["id"]
    return job


def evaluate(session: Session, arguments: Arguments) -> list[dict[str, Any]]:
    """Have a worker measure a model on rows whose target is known; a row for each metric."""
    model = model_of(session, arguments["model"], arguments["version"])
    request = model_request(session, model, arguments["source"], with_target=True)
    status = _run(session, request | {"kind": "evaluate"})
    metrics = (status["result"] or {}).get("metrics", {})
    return [{"metric": name, "value": value} for name, value in metrics.items()]


def find_model(session: Session, arguments: Arguments) -> dict[str, Any]:
    """Return a model's id, the columns that it learned from and their encodings, for a row's prediction."""
    model = model_of(session, arguments["model"], arguments["version"])
    features = model["features"]
    return {"id": model["id"], "columns": features["columns"], "encodings": features.get("encodings")}


def drop_model(session: Session, arguments: Arguments) -> int:
    """Delete a model, every version of it unless one is given; returns how many."""
    session.require_own_identity("drop a model", hint="Drop it outside of that.")
    model = model_of(session, arguments["model"], arguments["version"])
    dropped: int = session.value(
        "SELECT tensile.delete_models(tensile.sign(), {owner}, {name}, {version})",
        owner=("oid", model["owned_by"]),
        name=("text", model["name"]),
        version=("integer", arguments["version"]),
    )
    if dropped and arguments["version"] is not None and model["pinned"]:
        session.notice(
            f'version {model["version"]} of the model "{model["name"]}" was pinned; its default is now the'
            " newest of the others, if there are any"
        )
    return dropped


#: The operations that SQL may name.
OPERATIONS: Mapping[str, Callable[[Session, Arguments], Any]] = {
    "train": train,
    "submit": submit,
    "search": search,
    "submit_search": submit_search,
    "wait": wait_for,
    "cancel": cancel,
    "pause": pause,
    "resume": resume,
    "set_priority": set_priority,
    "delete_jobs": delete_jobs,
    "explain": explain,
    "predict": predict,
    "evaluate": evaluate,
    "find_model": find_model,
    "drop_model": drop_model,
    "pin_model": pin_model,
    "unpin_model": unpin_model,
    "grant_usage": grant_usage,
    "grant_worker": grant_worker,
    "set_quota": set_quota,
    "doctor": doctor,
    "missing_source": missing_source,
}


def _training(session: Session, arguments: Arguments) -> dict[str, Any]:
    """Return the request of a training, having told of a pinned version, which it does not replace."""
    request = training_request(session, arguments)
    tell_of_pinned(session, request["model"])
    return request | {"kind": "train"}


def _searching(session: Session, arguments: Arguments) -> dict[str, Any]:
    """Return the request of a search, having told of the same."""
    request = search_request(session, arguments)
    tell_of_pinned(session, request["model"])
    return request


def _submit(session: Session, request: dict[str, Any]) -> int:
    """Insert a job in the caller's transaction and return its id."""
    _check_workers(session, needed=False)
    job: int = session.value(
        "SELECT tensile.insert_job({request}::jsonb)", request=("text", json.dumps(request))
    )
    return job


def _run(session: Session, request: dict[str, Any], *, fails_with: str | None = None) -> dict[str, Any]:
    """Submit a job that others see at once, and wait for it; returns its row.

    fails_with: an SQLSTATE with which the job may fail without raising.
    """
    session.require_own_identity()
    _check_workers(session, needed=True)
    tell_changes(session, request["source_oid"], request["source_name"])
    job: int = session.value(
        "SELECT tensile.insert_job_visibly(tensile.sign(), {request}::jsonb)",
        request=("text", json.dumps(request)),
    )
    return wait.follow_own(session, job, tolerated=fails_with)


def _check_workers(session: Session, *, needed: bool) -> None:
    """Refuse a job that no worker could run as its submitter.

    needed: one must be alive now.
    Raises WorkerUnavailable, Forbidden.
    """
    row = session.row(
        "SELECT pg_catalog.count(*) AS alive, coalesce(pg_catalog.bool_or("
        " pg_catalog.pg_has_role(r.oid, m.oid, 'MEMBER') AND (r.rolsuper OR NOT m.rolsuper)), false)"
        " AS can_become,"
        " current_user::text AS me, pg_catalog.quote_literal(current_user) AS quoted,"
        " coalesce(pg_catalog.bool_or(m.rolsuper), false) AS is_superuser"
        " FROM tensile.workers w JOIN pg_catalog.pg_roles r ON r.rolname = w.login"
        " JOIN pg_catalog.pg_roles m ON m.rolname = current_user"
        " WHERE w.state IN ('starting', 'ready')"
        " AND w.heartbeat_at > pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => {lease})",
        lease=("float8", wait.LEASE_S),
    )
    assert row is not None
    if not row["alive"]:
        if needed:
            raise WorkerUnavailable(
                "no worker is running",
                hint="Start one: tensile-db worker --dsn ... ; or queue the job with tensile_submit.",
            )
        session.notice("no worker is running; the job waits for one")
    elif not row["can_become"]:
        hint = f"Ask an administrator: SELECT tensile_grant_usage({row['quoted']})."
        if row["is_superuser"]:
            hint = (
                "Workers never become a superuser: SET ROLE to an ordinary role that was given the right by"
                " SELECT tensile_grant_usage('...')."
            )
        raise Forbidden(f'no worker may read tables as the role "{row["me"]}"', hint=hint)


def _summary(status: dict[str, Any]) -> dict[str, Any]:
    """Return the row of tensile_train and tensile_wait."""
    result = status["result"] or {}
    vanilla, peak = status["vanilla_peak_nbytes"], status["measured_peak_nbytes"]
    return {
        "job_id": status["id"],
        "state": status["state"],
        "model": status["model"],
        "version": status["model_version"],
        # Those that were trained: less than were asked for, where the option `patience` ended it.
        "epochs": status["epoch"]
        if status["state"] != "succeeded"
        else result.get("epochs", status["epochs"]),
        "loss": result.get("loss", status["loss"]),
        "metrics": result.get("metrics"),
        "seconds": result.get("seconds", status["elapsed_s"]),
        "peak_bytes": peak,
        "saved": (vanilla - peak) / vanilla if vanilla and peak is not None else None,
    }
