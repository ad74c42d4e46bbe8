"""Brings sessions' requests for single rows to the jobs that serve their models, and takes answers back.

One thread with one connection for all models of a worker.  It is told of requests by notifications, which
carry no more than ids; a session whose request has waited for a second tells of it again, so that one that
was lost, or came before anyone served the model, costs a second.  While the database is away, answers wait.
"""

import logging
import os
import re
import select
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg

from tensile_db.catalog import serving
from tensile_db.catalog.engine import CATALOG_SETTINGS, connect
from tensile_db.catalog.serving import Answer, Left, Request
from tensile_db.errors import format_nbytes
from tensile_db.worker.serving.inbox import Inbox
from tensile_db.worker.serving.under_way import UnderWay

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0
_CLEAN_UP_EVERY_S = 10.0
_TRY_AGAIN_AFTER_S = 0.5
#: Requests that are remembered one by one until they are read.
_MOST_TOLD = 4096

#: Features of so many bytes are made at once; larger ones are images, and are decoded aside.
_SMALL_NBYTES = 16 * 1024
#: A request and its model.
_PAYLOAD = re.compile(r"\d{1,18} \d{1,18}")
_DECODERS = min(4, os.cpu_count() or 1)


class Postman:
    """One worker's."""

    def __init__(self, dsn: str) -> None:
        """dsn: of the worker's login; connects when there is something to serve."""
        self._dsn = dsn
        self._lock = threading.Lock()
        self._inboxes: dict[int, Inbox] = {}
        #: Models whose requests are to be looked for.
        self._new: set[int] = set()
        #: Told of, and to be read, each with its model.
        self._told: dict[int, int] = {}
        #: Handed to an inbox, and not answered.
        self._under_way = UnderWay()
        self._answers: list[Answer] = []
        #: Of requests whose rows were locked, and when to try these again, by time.monotonic().
        self._withheld: list[Answer] = []
        self._try_again_at = 0.0
        self._ended = False
        self._news, self._bell = os.pipe()
        os.set_blocking(self._news, False)
        os.set_blocking(self._bell, False)
        self._decoders = ThreadPoolExecutor(_DECODERS, thread_name_prefix="tensile-row")
        self._thread = threading.Thread(target=self._run, name="tensile-postman", daemon=True)

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, once what is answered is written, if the database is there."""
        self._ended = True
        self._ring()
        if self._thread.ident is not None:
            self._thread.join()
        self._decoders.shutdown(cancel_futures=True)
        os.close(self._news)
        os.close(self._bell)

    def open(self, inbox: Inbox) -> None:
        """Bring a model's requests from now on, and those that wait."""
        with self._lock:
            self._inboxes[inbox.model] = inbox
            self._new.add(inbox.model)
        self._ring()

    def close(self, inbox: Inbox) -> None:
        """Bring no more of them."""
        inbox.close()
        with self._lock:
            self._inboxes.pop(inbox.model, None)
            self._new.discard(inbox.model)
            self._under_way.forget(inbox.model)

    def answer(self, answers: Sequence[Answer]) -> None:
        """Have answers written soon."""
        with self._lock:
            self._answers += answers
        self._ring()

    def _ring(self) -> None:
        try:
            os.write(self._bell, b".")
        except BlockingIOError:
            # It has been rung often enough.
            return

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._ended:
            try:
                # No connection is kept open for nothing.
                if not self._wait_for_work():
                    return
                with connect(
                    self._dsn,
                    application_name="tensile_db postman",
                    settings=f"{CATALOG_SETTINGS} -c synchronous_commit=off",
                    autocommit=True,
                ) as connection:
                    connection.add_notify_handler(lambda told: self._told_of(told.payload))
                    connection.execute(f"LISTEN {serving.CHANNEL}")
                    with self._lock:
                        self._new |= self._inboxes.keys()
                    pause_s = _FIRST_PAUSE_S
                    self._serve(connection)
            except psycopg.Error as error:
                log.warning("rows wait for their predictions %.1f s: %s", pause_s, error)
                self._sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            except Exception:
                # Of all models: whatever it was, the next rows are to be brought.
                log.exception("rows were not brought")
                self._sleep(pause_s)

    def _wait_for_work(self) -> bool:
        while not self._ended and not self._inboxes and not self._answers:
            select.select([self._news], [], [])
            self._hear()
        return not self._ended

    def _serve(self, connection: psycopg.Connection) -> None:
        clean_up_at = time.monotonic()
        while True:
            if time.monotonic() >= clean_up_at:
                serving.delete_abandoned(connection)
                clean_up_at = time.monotonic() + _CLEAN_UP_EVERY_S
            self._write_answers(connection)
            if self._ended:
                return
            self._bring(self._read(connection))
            if self._has_work():
                continue
            wait_s = _TRY_AGAIN_AFTER_S if self._withheld else _CLEAN_UP_EVERY_S
            ready, _, _ = select.select([self._news, connection.fileno()], [], [], wait_s)
            if self._news in ready:
                self._hear()
            if connection.fileno() in ready:
                connection.pgconn.consume_input()
                while (notification := connection.pgconn.notifies()) is not None:
                    self._told_of(notification.extra.decode())

    def _has_work(self) -> bool:
        with self._lock:
            if self._answers or self._told:
                return True
            return any(self._under_way.room(model)[0] for model in self._new)

    def _told_of(self, payload: str) -> None:
        """Take a notification in; from the database, where users may notify as well."""
        if _PAYLOAD.fullmatch(payload) is None:
            return
        request, model = (int(number) for number in payload.split())
        with self._lock:
            if model not in self._inboxes or request in self._under_way:
                return
            if self._under_way.room(model)[0] and len(self._told) < _MOST_TOLD:
                self._told[request] = model
            else:
                # Looked for once there is room.
                self._new.add(model)

    def _read(self, connection: psycopg.Connection) -> list[Request]:
        with self._lock:
            told, self._told = self._told, {}
            room = {model: self._under_way.room(model) for model in {*self._new, *told.values()}}
            room = {model: left for model, left in room.items() if left[0]}
            self._new |= set(told.values()) - room.keys()
            new = self._new & room.keys()
            self._new -= new
            under_way = [request for model in new for request in self._under_way.of(model)]
        found: list[Request] = []
        left: list[Left] = []
        if new:
            found, left = serving.read_waiting(
                connection, without=under_way, room={model: room[model] for model in new}
            )
        told = {request: model for request, model in told.items() if model in room.keys() - new}
        if told:
            those = {model: room[model] for model in told.values()}
            more, more_left = serving.read(connection, list(told), room=those)
            found, left = found + more, left + more_left
        if too_large := [_too_large(one) for one in left if one.nbytes > serving.LARGEST_NBYTES]:
            self.answer(too_large)
        read = Counter([*(one.model for one in found), *(one.model for one in left)])
        with self._lock:
            # There may be more of them than there was room for.
            self._new |= {model for model, rows in read.items() if rows == room[model][0]}
            self._new |= {one.model for one in left if one.nbytes <= serving.LARGEST_NBYTES}
            self._new &= self._inboxes.keys()
        return sorted(found, key=lambda request: request.id)

    def _bring(self, requests: Collection[Request]) -> None:
        for request in requests:
            with self._lock:
                inbox = self._inboxes.get(request.model)
                if inbox is None or request.id in self._under_way:
                    continue
                self._under_way.add(request.id, model=request.model, nbytes=len(request.features))
            if len(request.features) <= _SMALL_NBYTES:
                self._put(inbox, request)
            else:
                self._decoders.submit(self._put, inbox, request)

    def _put(self, inbox: Inbox, request: Request) -> None:
        try:
            answered = inbox.put(request)
        except Exception as error:
            # One row's defect is no other's.
            log.exception("the features of request %s could not be made", request.id)
            message = f"internal error: {type(error).__name__}: {error}"
            answered = Answer(request=request.id, sqlstate="XX000", message=message)
        if answered is not None:
            self.answer([answered])

    def _write_answers(self, connection: psycopg.Connection) -> None:
        with self._lock:
            fresh = list(self._answers)
        again = self._withheld if time.monotonic() >= self._try_again_at else []
        answers = [*again, *fresh]
        if not answers:
            return
        try:
            locked = serving.answer(connection, answers)
        except (psycopg.DataError, UnicodeError):
            # What one of them holds the database does not take; the others' sessions shall not wait for it.
            locked = {request for one in answers for request in _answer_somehow(connection, one)}
        with self._lock:
            del self._answers[: len(fresh)]
            for one in answers:
                if one.request not in locked:
                    self._under_way.done(one.request)
        # The role that asked may keep its rows locked for as long as it likes.
        withheld = [one for one in answers if one.request in locked]
        if again or not self._withheld:
            self._try_again_at = time.monotonic() + _TRY_AGAIN_AFTER_S
            self._withheld = withheld
        else:
            self._withheld += withheld

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._ended and (left := until - time.monotonic()) > 0:
            select.select([self._news], [], [], left)
            self._hear()

    def _hear(self) -> None:
        try:
            while len(os.read(self._news, 4096)) == 4096:
                pass
        except BlockingIOError:
            return


def _answer_somehow(connection: psycopg.Connection, answer: Answer) -> set[int]:
    try:
        return serving.answer(connection, [answer])
    except (psycopg.DataError, UnicodeError) as error:
        log.exception("the answer to request %s cannot be written", answer.request)
        message = f"internal error: the answer cannot be written: {type(error).__name__}"
        return serving.answer(connection, [Answer(request=answer.request, sqlstate="XX000", message=message)])


def _too_large(request: Left) -> Answer:
    return Answer(
        request=request.id,
        sqlstate="54000",
        message=f"the row has {format_nbytes(request.nbytes)} of features, and a row by itself may have"
        f" {format_nbytes(serving.LARGEST_NBYTES)}",
        hint="Predict it in a table: tensile_predict(model, source).",
    )
