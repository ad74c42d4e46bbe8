"""Networks that torch.compile is given on a GPU: made on the host, whatever they take in."""

import json

import pytest

from bench.gpu import section_compiled
from bench.gpu.networks import compiled_cases
from bench.gpu.results import Results
from bench.gpu.subjects import only_eager


@pytest.mark.parametrize("quick", [True, False])
def test_each_has_a_batch_that_it_takes(quick):
    for workload, size in compiled_cases(quick=quick):
        features, target = only_eager(workload, size).batch
        assert features.dtype == workload.features_dtype
        assert len(features) == size * workload.rows
        assert len(target) == len(features) * workload.targets_per_row


def test_one_that_cannot_be_made_leaves_the_others(tmp_path, monkeypatch):
    def made(workload, size):
        if workload.name == "toy_gpt":
            raise ValueError("no vocabulary")
        return only_eager(workload, size)

    monkeypatch.setattr(section_compiled, "only_eager", made)
    results = Results(tmp_path / "compiled.json", section="compiled", limit_s=60, facts={})
    names = [(subject.name, budget) for subject, budget in section_compiled._cases(results, quick=True)]
    assert names == [("toy_cnn", 1.0), ("toy_cnn", 0.5)]
    (failure,) = json.loads(results.path.read_text())["failures"]
    assert failure["name"] == "toy_gpt 4: batch"
