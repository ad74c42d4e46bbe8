"""A real worker runs a training in parts, in less memory than its largest op needs."""

NETWORK = {
    "architecture": "test_resnet",
    "features": ["image"],
    "batch_size": 32,
    "epochs": 8,
    "optimizer": "adam",
    "options": {"image_size": 32},
}


#: Of the 3 MiB that the largest op needs.
LIMIT_NBYTES = 5 * 2**19


def test_a_training_that_fits_in_parts_alone_trains_and_says_so(database, start_worker):
    start_worker()
    limited = {**NETWORK, "memory_limit_nbytes": LIMIT_NBYTES}
    refused = database.wait(database.submit("pictures", **limited, policy="tensile"))
    assert (refused["state"], refused["error_sqlstate"]) == ("failed", "53200")
    row = database.wait(database.submit("pictures", **limited, policy="tsplit"))
    assert row["state"] == "succeeded", row["error_message"]
    assert row["measured_peak_nbytes"] <= row["guaranteed_peak_nbytes"] <= LIMIT_NBYTES
    (plan,) = database.execute(
        "SELECT * FROM tensile.plans WHERE job_id = %s AND reason = 'cold_start'", row["id"]
    )
    assert plan["policy"] == "tsplit"
    ops = database.execute("SELECT * FROM tensile.graph_ops WHERE digest = %s", plan["graph_digest"])
    assert len(ops) == len(plan["order"])
    (graph,) = database.execute("SELECT * FROM tensile.graphs WHERE digest = %s", plan["graph_digest"])
    assert (graph["architecture"], graph["batch_size"], graph["optimizer"]) == ("test_resnet", 32, "adam")
    measured = database.execute("SELECT op_id FROM tensile.latency_logs WHERE job_id = %s", row["id"])
    assert 0 < len(measured) < len(ops)
