"""The worker's child processes where something goes wrong, on either side."""

import pickle
import queue
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from tensile_db.scheduler.request import SplitsWithin
from tensile_db.worker.planning.child import Child
from tensile_db.worker.planning.planner import SplitFinder
from tensile_db.worker.planning.planning_process import Broken
from tests.patience import PATIENCE_S
from tests.unit.worker.planning.questions import search

#: Says when it has begun to answer, and never ends.
ENDLESS = """
import os, threading
from tensile_db.worker.planning.child import answer_questions
answer_questions(lambda question: (os.write(1, b"!"), threading.Event().wait()))
"""


def test_a_child_ends_with_its_input_in_the_midst_of_an_answer():
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdin=pipe, stdout=pipe) as child:
        try:
            # A pickled None.
            child.stdin.write(b"N.")
            child.stdin.flush()
            assert child.stdout.read(1) == b"!"
            child.stdin.close()
            assert child.wait(60) == 0
        finally:
            child.kill()


#: Answers with what it is asked, and fails at whatever it prepares.
CLUMSY = """
from tensile_db.worker.planning.child import answer_questions
answer_questions(lambda question: question, lambda question: 1 / 0)
"""


def test_a_child_that_fails_at_what_it_prepares_answers_the_next_question():
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", CLUMSY], stdin=pipe, stdout=pipe, stderr=pipe) as child:
        for question in (1, 2, 3):
            pickle.dump(question, child.stdin)
            child.stdin.flush()
            assert pickle.load(child.stdout) == question
        child.stdin.close()
        assert child.wait(PATIENCE_S) == 0
        assert b"ZeroDivisionError" in child.stderr.read()


@pytest.fixture
def split_finder():
    split_finder = SplitFinder()
    yield split_finder
    split_finder.close()


def ask(split_finder, question):
    answers = queue.SimpleQueue()
    split_finder.ask(question, answers.put)
    return answers.get(timeout=PATIENCE_S)


def test_a_process_that_cannot_be_started_is_an_answer_and_the_next_question_is_answered(
    split_finder, monkeypatch
):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    failed = ask(split_finder, search(400))
    assert isinstance(failed, Broken)
    assert failed.message.startswith("the splitting process ended: FileNotFoundError")
    monkeypatch.undo()
    assert ask(split_finder, search(400)) == SplitsWithin(limit_nbytes=400, splits=())


def test_a_question_that_cannot_be_sent_is_answered_and_the_next_one_is_too(split_finder):
    failed = ask(split_finder, replace(search(400), graph=threading.Lock()))
    assert isinstance(failed, Broken)
    assert "cannot pickle" in failed.message
    assert ask(split_finder, search(400)) == SplitsWithin(limit_nbytes=400, splits=())


@pytest.mark.slow
def test_what_nobody_wants_any_more_is_given_up_for_the_next_question():
    child = Child("tests.played.endless_child", str)
    answers, wanted = queue.SimpleQueue(), threading.Event()
    wanted.set()
    try:
        child.ask("first", answers.put)
        child.ask("endless", answers.put, wanted.is_set)
        child.ask("next", answers.put)
        assert answers.get(timeout=PATIENCE_S) == "first"
        wanted.clear()
        assert answers.get(timeout=PATIENCE_S) == "next"
    finally:
        child.close()
