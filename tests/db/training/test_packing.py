"""A real worker keeps tensors as codes where memory is short, and trains to the same weights."""

import pytest

from tests.jobs.picture_jobs import PACKABLE


def test_a_training_with_packed_tensors_has_the_weights_of_one_without(database, start_worker):
    start_worker()
    ample = database.wait(database.submit("pictures", **PACKABLE))
    assert ample["state"] == "succeeded", ample["error_message"]
    limit_nbytes = int(0.9 * ample["vanilla_peak_nbytes"])
    limited = database.wait(database.submit("pictures", **PACKABLE, memory_limit_nbytes=limit_nbytes))
    assert limited["state"] == "succeeded", limited["error_message"]
    assert limited["measured_peak_nbytes"] <= limited["guaranteed_peak_nbytes"] <= limit_nbytes
    assert database.weights(limited["id"]) == database.weights(ample["id"])
    packs = {
        row["id"]: database.execute(
            "SELECT op.target FROM tensile.plans AS plan"
            " JOIN tensile.graph_ops AS op ON op.digest = plan.graph_digest"
            " WHERE plan.job_id = %s AND plan.reason = 'cold_start' AND op.target LIKE 'tensile.pack%%'",
            row["id"],
        )
        for row in (ample, limited)
    }
    assert packs[ample["id"]] == []
    assert {op["target"] for op in packs[limited["id"]]} == {
        "tensile.pack_signs.default",
        "tensile.pack_uint16.default",
    }
    # Latencies are told by the captured ops, whichever of them ran with codes.
    measured = database.execute(
        "SELECT DISTINCT op_id FROM tensile.latency_logs WHERE job_id = %s", limited["id"]
    )
    (captured,) = database.execute(
        "SELECT count(*) AS ops FROM tensile.graph_ops AS op JOIN tensile.plans AS plan"
        " ON op.digest = plan.graph_digest WHERE plan.job_id = %s AND plan.version = 1",
        ample["id"],
    )
    assert 0 < len(measured) <= captured["ops"]


@pytest.mark.thorough
def test_an_explanation_says_how_many_tensors_are_packed(database, start_worker):
    start_worker()
    ample = database.wait(database.submit("pictures", **PACKABLE))
    limit_nbytes = int(0.9 * ample["vanilla_peak_nbytes"])
    for limit, some in ((None, False), (limit_nbytes, True)):
        job = database.submit("pictures", kind="explain", **PACKABLE, memory_limit_nbytes=limit)
        explained = database.wait(job)
        assert explained["state"] == "succeeded", explained["error_message"]
        found = {row["property"]: row["value"] for row in explained["result"]["rows"]}
        assert (int(found["packed_tensors"]) > 0) == some
