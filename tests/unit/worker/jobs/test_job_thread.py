"""Whatever a job raises ends it in its row, with what it was."""

from types import SimpleNamespace

import pytest

from tensile_db.errors import UnknownName
from tensile_db.worker.jobs import job_thread


def job(*, model_id=None):
    return SimpleNamespace(
        id=7,
        setting=SimpleNamespace(device=None),
        row=SimpleNamespace(kind="train", model_id=model_id),
        records=SimpleNamespace(fence="fence", must=lambda write: write("connection")),
    )


class Odd(BaseException):
    """Neither an Exception nor one of Python's own."""


@pytest.mark.parametrize(
    "raised", [ValueError("bad"), SystemExit("bad"), KeyboardInterrupt("bad"), Odd("bad")]
)
def test_whatever_a_job_raises_is_written_as_its_end(monkeypatch, raised):
    def run(_job):
        raise raised

    monkeypatch.setitem(job_thread.KINDS, "train", run)
    end = job_thread._run(job())
    assert end.func is job_thread.jobs.fail
    assert end.keywords["sqlstate"] == "XX000"
    assert end.keywords["message"] == f"internal error: {type(raised).__name__}: bad"


@pytest.mark.parametrize(
    ("offered_by", "model_id", "sqlstate", "message"),
    [
        (
            "their.networks:wide",
            None,
            "58P01",
            '"wide" (their.networks:wide) is not installed for this worker',
        ),
        ("their.networks:wide", 3, "58P01", '"wide" (their.networks:wide) is not installed for this worker'),
        (None, 3, "58P01", 'the package that offers architecture "wide" is not installed for this worker'),
        (None, None, "22023", 'unknown architecture "wide"'),
    ],
)
def test_an_architecture_whose_package_is_missing_is_said_to_be(
    monkeypatch, offered_by, model_id, sqlstate, message
):
    def run(_job):
        raise UnknownName("architecture", "wide", ["resnet18", "mlp"])

    monkeypatch.setitem(job_thread.KINDS, "train", run)
    monkeypatch.setattr(job_thread.workers, "offered_by", lambda conn, name: offered_by)
    end = job_thread._run(job(model_id=model_id)).keywords
    assert end["sqlstate"] == sqlstate
    assert message in end["message"]
    assert ("Install it" in end["hint"]) == (sqlstate == "58P01")


def test_another_unknown_name_is_what_it_is(monkeypatch):
    def run(_job):
        raise UnknownName("option", "wide", ["width"])

    monkeypatch.setitem(job_thread.KINDS, "train", run)
    assert job_thread._run(job(model_id=3)).keywords["message"] == 'unknown option "wide"'
