"""How much is tried: by `make check` little, by `make test` what finds most, by `make thorough` all.

A profile of Hypothesis says which, `quick`, `thorough` or its own one.  It decides how many examples a
property-based test tries, and whether tests marked `thorough` run: of many cases alike the most.
"""

import pytest
from hypothesis import settings

#: Of so many examples a profile tries one; any other profile, `_ELSE`.
_ONE_IN = {"quick": 10, "thorough": 1}
_ELSE = 3
#: However few, they are to reach more than the simplest cases.
_LEAST = 5

PROFILES = tuple(_ONE_IN)


def examples(most, **others):
    """Return the settings of a test that tries up to `most` examples, where all is tried."""
    return settings(max_examples=share_of(most), deadline=None, **others)


def share_of(most):
    """Return how many of so many attempts the profile makes."""
    return max(most // _ONE_IN.get(settings.get_current_profile_name(), _ELSE), _LEAST)


def one_in(count, cases):
    """Return a test's cases as parameters, all but each `count`-th of them marked `thorough`.

    Where they are a product, let the count have no factor in common with how many values each dimension has:
    then each value is among those that are left.
    """
    return [
        pytest.param(*_values(case), marks=[pytest.mark.thorough] if number % count else [])
        for number, case in enumerate(cases)
    ]


def runs_all():
    """Tell whether all is tried."""
    return settings.get_current_profile_name() == "thorough"


def _values(case):
    return case if isinstance(case, tuple) else (case,)
