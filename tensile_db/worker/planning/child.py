"""A process that answers questions, one at a time, from both its ends.

Python runs one thread at a time; a planner's loop beside a job's thread costs the job milliseconds an op.
Questions and answers are pickles on standard input and output, between a parent and its own child, which ends
when its input does, and so with its parent, also in the midst of an answer.  Imports no torch, and so starts
in a fraction of a second.

On the parent's side a thread waits for the answers, so that whoever asks never does.  A child that dies, e.g.
for lack of memory, or cannot be started is an answer, too, and the next question starts another.
"""

import gc
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")

_ENDS_WITHIN_S = 5
_LOOKS_UP_S = 0.5


def answer_questions(answer: Callable[[Q], A], prepare: Callable[[Q], None] = lambda _: None) -> None:
    """Answer what comes on standard input until there is no more: the child's whole life.

    prepare: called with each question after its answer is sent, to have less to do for the next one like it.
    """
    # Ctrl-C in a terminal reaches every process of it; this one ends with its parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Plans are many objects and few cycles: looking for those takes a quarter of the time, so it is done
    # between answers.
    gc.disable()
    questions: queue.SimpleQueue[Q] = queue.SimpleQueue()
    # Apart from the reading, for a parent that is gone is seen by its pipe's end alone.
    threading.Thread(
        target=_answer_all, args=(questions, answer, prepare), name="answers", daemon=True
    ).start()
    while True:
        try:
            questions.put(pickle.load(sys.stdin.buffer))  # noqa: S301  # written by the parent
        except EOFError:
            # Nobody waits for the answer that may be under way.
            os._exit(0)


def _answer_all(
    questions: queue.SimpleQueue[Q], answer: Callable[[Q], A], prepare: Callable[[Q], None]
) -> None:
    try:
        while True:
            question = questions.get()
            pickle.dump(answer(question), sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)
            sys.stdout.buffer.flush()
            _prepare(prepare, question)
            gc.collect()
    except Exception:  # noqa: BLE001  # the parent waits, whatever it is
        traceback.print_exc()
        os._exit(1)


def _prepare(prepare: Callable[[Q], None], question: Q) -> None:
    try:
        prepare(question)
    except Exception:  # noqa: BLE001  # nobody waits for it, and who asks next has nothing to do with it
        traceback.print_exc()


@dataclass(frozen=True, kw_only=True)
class _Asked(Generic[Q, A]):
    question: Q
    answered: Callable[[A], None]
    is_wanted: Callable[[], bool]


class Child(Generic[Q, A]):
    """The parent's side."""

    def __init__(self, module: str, broken: Callable[[str], A]) -> None:
        """Start its thread; the process starts with the first question.

        module: whose `main` the child runs; broken: makes an answer of what it died of.
        """
        name = module.rpartition(".")[2]
        # Not `-m`: the module would be __main__ there, and its answers of types unknown here.
        self._program = f"from {module} import main; main()"
        self._called = name.replace("_", " ")
        self._broken = broken
        self._asked: queue.SimpleQueue[_Asked[Q, A] | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(
            target=self._serve, name=f"tensile-{name.replace('_', '-')}", daemon=True
        )
        self._thread.start()

    def ask(
        self,
        question: Q,
        answered: Callable[[A], None],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Queue a question.

        answered: called once, in this object's thread; must neither block nor raise.
        is_wanted: looked at when it is the question's turn, and while it is; False: it is never answered.
        """
        self._asked.put(_Asked(question=question, answered=answered, is_wanted=is_wanted))

    def wait_for_answer(self, question: Q) -> A:
        """Put a question and wait for the answer; not in a thread that others wait for."""
        answers: queue.SimpleQueue[A] = queue.SimpleQueue()
        self.ask(question, answers.put)
        return answers.get()

    def close(self) -> None:
        """End the process; questions still open are not answered."""
        self._asked.put(None)
        process = self._process
        if process is not None:
            process.kill()
        self._thread.join(_ENDS_WITHIN_S)

    def _serve(self) -> None:
        while (asked := self._asked.get()) is not None:
            if asked.is_wanted():
                answer = self._answer(asked)
                if answer is not None:
                    asked.answered(answer)
        self._end()

    def _answer(self, asked: _Asked[Q, A]) -> A | None:
        """Return the answer; None where nobody wants it any more."""
        try:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            pickle.dump(asked.question, process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            while not wait([process.stdout.fileno()], _LOOKS_UP_S):
                if not asked.is_wanted():
                    # The next question would wait for it; what this process knows, the next one works out.
                    self._end()
                    return None
            answer: A = pickle.load(process.stdout)  # noqa: S301  # written by our own child
        except Exception as error:  # noqa: BLE001  # whatever it is, who asks waits for an answer
            self._end()
            return self._broken(f"the {self._called} ended: {type(error).__name__} {error}")
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is None or process.poll() is not None:
            self._end()
            process = self._process = subprocess.Popen(
                [sys.executable, "-c", self._program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                # What could not be sent any more is of no interest.
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
