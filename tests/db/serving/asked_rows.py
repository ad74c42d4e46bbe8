"""Rows that sessions ask for by hand, and a worker's postman and inboxes that they come to."""

import time

import numpy as np

from tensile_db.catalog.serving import Answer
from tensile_db.worker.serving.inbox import Inbox
from tests.patience import PATIENCE_S

ASK = (
    "SELECT tensile.insert_serving_request({model}, 'bytes', false, {features}, pid, backend_start)"
    " FROM pg_stat_get_activity(pg_backend_pid())"
)


def serve(postman, model):
    """Open a model's inbox, whose rows are the features' bytes."""
    inbox = Inbox(model, lambda request: np.frombuffer(request.features, np.uint8), lambda: None)
    postman.open(inbox)
    return inbox


def ask(connection, model, features="'\\x01'"):
    return connection.execute(ASK.format(model=model, features=features)).fetchone()["insert_serving_request"]


def take(inbox, count=1, timeout_s=PATIENCE_S):
    deadline = time.monotonic() + timeout_s
    while len(inbox) < count:
        assert time.monotonic() < deadline, len(inbox)
        time.sleep(0.01)
    return [row.request.id for row in inbox.take(10**6)]


def is_answered(site, request):
    return site.value("SELECT answered FROM tensile.serving_requests WHERE id = %s", request)


def wait_until_answered(site, request, timeout_s=PATIENCE_S):
    deadline = time.monotonic() + timeout_s
    while not is_answered(site, request):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def says(request):
    return Answer(request=request, prediction="odd")
