"""A worker whose rows are all answered takes no processor time from those who compute."""

import time

from tests.db.serving.asked_rows import ask, says, serve, take, wait_until_answered
from tests.jobs.inserted_rows import add_model
from tests.processor_time import processor_time_s


def test_after_a_row_is_answered_the_postman_rests(site, postman):
    model = add_model(site)
    inbox = serve(postman, model)
    with site.connect("alice") as alice:
        request = ask(alice, model)
        postman.answer([says(one) for one in take(inbox)])
        wait_until_answered(site, request)
        before_s = processor_time_s()["tensile-postman"]
        time.sleep(1)
        # Turning round and round it would use far more than half of that second.
        assert processor_time_s()["tensile-postman"] - before_s < 0.2
