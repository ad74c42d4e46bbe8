"""A child process that answers some questions at once, and others never."""

import threading

from tensile_db.worker.planning.child import answer_questions


def main():
    answer_questions(answer)


def answer(question):
    if question == "endless":
        threading.Event().wait()
    return question
