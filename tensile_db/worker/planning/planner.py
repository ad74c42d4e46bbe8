"""Puts questions to the planning process, one at a time, and hands its answers on.

A thread waits for the answers, so that the controller never does.  A planning process that dies, e.g. for
lack of memory, is an answer, too, and the next question starts another.
"""

import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable

from tensile_db.worker.planning.planning_process import Answer, Broken, Question

#: Given the answer, in the planner's thread.
Answered = Callable[[Answer], None]

#: Not `-m`: the module would be __main__ there, and its answers of types unknown here.
_PROGRAM = "from tensile_db.worker.planning.planning_process import main; main()"

_ENDS_WITHIN_S = 5


class Planner:
    """The memory scheduler's front."""

    def __init__(self) -> None:
        """Start its thread; the process starts with the first question."""
        self._questions: queue.SimpleQueue[tuple[Question, Answered] | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._serve, name="tensile-planner", daemon=True)
        self._thread.start()

    def ask(self, question: Question, answered: Answered) -> None:
        """Queue a question; `answered` is called once, and must neither block nor raise."""
        self._questions.put((question, answered))

    def plan(self, question: Question) -> Answer:
        """Put a question and wait for the answer; not in the controller's thread."""
        answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.ask(question, answers.put)
        return answers.get()

    def close(self) -> None:
        """End the process; all jobs must have ended, for questions still open are not answered."""
        self._questions.put(None)
        process = self._process
        if process is not None:
            process.kill()
        self._thread.join(_ENDS_WITHIN_S)

    def _serve(self) -> None:
        while (asked := self._questions.get()) is not None:
            question, answered = asked
            answered(self._answer(question))
        self._end()

    def _answer(self, question: Question) -> Answer:
        process = self._process
        if process is None or process.poll() is not None:
            self._end()
            process = self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(question, process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            answer: Answer = pickle.load(process.stdout)  # noqa: S301  # written by our own child
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            self._end()
            return Broken(message=f"the planning process ended: {type(error).__name__} {error}")
        return answer

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
