"""How much is tried: by `make check` little, by `make test` what finds most, by `make thorough` all.

A profile of Hypothesis says which, `quick`, `thorough` or its own one.  It decides how many examples a
property-based test tries, and whether tests marked `thorough` run: of many cases alike the most, and long
tests that mostly go the same ways through the code as others do.
"""

import pytest
from hypothesis import HealthCheck, settings

#: Of so many examples a profile tries one; any other profile, `_ELSE`.
_ONE_IN = {"quick": 16, "thorough": 1}
_ELSE = 12
#: However few, they are to reach more than the simplest cases.
_LEAST = 5

PROFILES = tuple(_ONE_IN)


def examples(most, *, suppressed=(), **others):
    """Return the settings of a test that tries `most` examples, where all is tried.

    However long they take: unit tests give way to others, and on a busy machine one may wait for a minute.
    suppressed: more of Hypothesis's health checks that are left out.
    """
    suppressed = [HealthCheck.too_slow, *suppressed]
    return settings(max_examples=share_of(most), deadline=None, suppress_health_check=suppressed, **others)


def share_of(most):
    """Return how many of so many attempts the profile makes."""
    return max(most // _ONE_IN.get(settings.get_current_profile_name(), _ELSE), _LEAST)


def one_in(count, cases):
    """Return a test's cases as parameters, marked `thorough` but for about each `count`-th of them.

    cases: single values, or tuples: of these so many more are left that each name is in its place in some.
    """
    found = [case if isinstance(case, tuple) else (case,) for case in cases]
    left = set(range(0, len(found), count))
    seen = {name for number in left for name in _names(found[number])}
    for number, values in enumerate(found):
        if len(values) > 1 and not _names(values) <= seen:
            left.add(number)
            seen |= _names(values)
    return [
        pytest.param(*values, marks=[] if number in left else [pytest.mark.thorough])
        for number, values in enumerate(found)
    ]


def by_turns(cases, ways):
    """Return each case, a tuple, with each way behind it as parameters, marked `thorough` but for one way.

    Of the first case that is the first way, of the second the second, and so on.
    """
    return [
        pytest.param(*case, way, marks=[] if place == number % len(ways) else [pytest.mark.thorough])
        for number, case in enumerate(cases)
        for place, way in enumerate(ways)
    ]


def _names(values):
    return {(place, value) for place, value in enumerate(values) if isinstance(value, str)}


def runs_all():
    """Tell whether all is tried."""
    return settings.get_current_profile_name() == "thorough"
