"""The same work in several threads, each with an argument of its own."""

from concurrent.futures import ThreadPoolExecutor


def at_once(work, arguments):
    """Run `work` for each argument in a thread; once all are over, raise what one of them raised."""
    arguments = list(arguments)
    with ThreadPoolExecutor(len(arguments)) as threads:
        return list(threads.map(work, arguments))
