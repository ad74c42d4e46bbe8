"""The options of the private cluster's worker, from one `up` to the next."""

from tensile_db.commands.worker_options import WorkerOptions, recall, remember


def test_what_is_remembered_is_recalled(tmp_path):
    options = WorkerOptions(device="cuda:0", memory_nbytes=2**30, link_bytes_per_s=10**9, threads=2)
    remember(tmp_path, options)
    assert recall(tmp_path) == options


def test_where_nothing_can_be_recalled_it_is_started_as_usual(tmp_path):
    assert recall(tmp_path) == WorkerOptions()
    for damaged in ("", "{", "[]", '{"device": "cpu", "speed": 3}'):
        (tmp_path / "worker.options").write_text(damaged)
        assert recall(tmp_path) == WorkerOptions()
