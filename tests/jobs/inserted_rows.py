"""Rows that workers and jobs leave in the catalog, inserted as they would."""


def add_model(site, *, owner="alice", name="digits", version=1, columns="image"):
    """Insert a model as a worker would; return its id."""
    return site.value(
        "INSERT INTO tensile.models (name, version, owned_by, owner, architecture, task, classes, features,"
        " target, parameter_nbytes, metrics) SELECT %s, %s, oid, rolname, 'vgg16', 'classification',"
        """ '["even", "odd"]', jsonb_build_object('columns', string_to_array(%s, ',')), 'label', 100,"""
        """ '{"accuracy": 0.75}' FROM pg_roles WHERE rolname = %s RETURNING id""",
        name,
        version,
        columns,
        owner,
    )


def add_job(site, owner="alice", *, state="succeeded", days_ago=100, kind="train", search=None):
    """Insert a job that ended so many days ago; None: it has not ended.  Return its id."""
    return site.value(
        "INSERT INTO tensile.jobs (kind, state, phase, submitted_by, owner, source_oid, source_name,"
        " search_id, device_seconds, finished_at)"
        " SELECT %s, %s, 'done', oid, rolname, 0, 'points', %s, 1, now() - make_interval(days => %s)"
        " FROM pg_roles WHERE rolname = %s RETURNING id",
        *(kind, state, search, days_ago, owner),
    )


#: Lets the rows that are there look as if a dump had brought them from another cluster.
ELSEWHERE = "UPDATE tensile.homes SET system_identifier = 1, jobs_oid = 1"

#: Fills every table with a row of one job and its model.
LEFT_BY_A_JOB = """
INSERT INTO tensile.job_events (job_id, kind) VALUES ({job}, 'claimed');
INSERT INTO tensile.predictions (job_id, ordinal) VALUES ({job}, 0);
INSERT INTO tensile.graphs VALUES ('digest of {job}', 'vgg16', 8, 32, 'sgd', 1, 1);
INSERT INTO tensile.graph_tensors VALUES ('digest of {job}', 0, 4, 'float32', '{{1}}', 'input', false);
INSERT INTO tensile.graph_ops
    VALUES ('digest of {job}', 0, 'aten.relu', 'forward', '{{0}}', '{{}}', 0, 1, 4, true);
INSERT INTO tensile.latency_logs (job_id, op_id) VALUES ({job}, 0);
INSERT INTO tensile.plans
    (job_id, version, policy, reason, graph_digest, run_ops, run_begin_ns, run_end_ns, run_recomputes)
    VALUES ({job}, 1, 'tensile', 'cold_start', 'digest of {job}', '{{0}}', '{{0}}', '{{1}}', '{{f}}');
INSERT INTO tensile.plan_events (job_id, version, ordinal, kind) VALUES ({job}, 1, 0, 'release');
INSERT INTO tensile.memory_timeline_points (job_id, version, ordinal, at_ns, nbytes)
    VALUES ({job}, 1, 0, 0, 4);
INSERT INTO tensile.memory_peaks (job_id, plan_version, iteration, peak_nbytes) VALUES ({job}, 1, 1, 4);
INSERT INTO tensile.training_metrics (job_id, epoch, split, metric, value)
    VALUES ({job}, 1, 'train', 'loss', 1);
INSERT INTO tensile.models
    (name, version, owned_by, owner, job_id, architecture, task, features, parameter_nbytes)
    SELECT 'm', 1, submitted_by, owner, id, 'vgg16', 'regression', '{{}}', 4
    FROM tensile.jobs WHERE id = {job};
INSERT INTO tensile.model_weights
    SELECT id, 'parameter/w', 0, 'float32', '{{1}}', '\\x00' FROM tensile.models WHERE job_id = {job};
INSERT INTO tensile.search_requests (job_id, space, method, trials, max_parallel, metric)
    VALUES ({job}, '{{}}', 'random', 1, 1, 'loss');
INSERT INTO tensile.search_trials (search_id, number, job_id, params) VALUES ({job}, 0, {job}, '{{}}');
INSERT INTO tensile.checkpoints (job_id, iteration, attempt) VALUES ({job}, 1, 1);
INSERT INTO tensile.checkpoint_tensors
    SELECT id, 'parameter/w', 0, 'float32', '{{1}}', '\\x00' FROM tensile.checkpoints WHERE job_id = {job};
"""
