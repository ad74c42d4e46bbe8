"""Rows that sessions ask for by hand, and a model's inbox that they come to."""

import numpy as np

from tensile_db.catalog.serving import Answer
from tensile_db.worker.serving.inbox import Inbox
from tests.patience import wait_until

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


def take(inbox, count=1):
    wait_until(lambda: len(inbox) >= count)
    return [row.request.id for row in inbox.take(10**6)]


def is_answered(site, request):
    return site.value("SELECT answered FROM tensile.serving_requests WHERE id = %s", request)


def wait_until_answered(site, request):
    wait_until(lambda: is_answered(site, request))


def says(request):
    return Answer(request=request, prediction="odd")
