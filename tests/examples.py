"""How many examples a property-based test tries: a tenth with the profile `quick`, as in `make check`."""

from hypothesis import settings

#: However few, they are to reach more than the simplest cases.
_LEAST = 5


def examples(most, **others):
    """Return the settings of a test that tries up to `most` examples."""
    return settings(max_examples=max(most // 10, _LEAST) if is_quick() else most, deadline=None, **others)


def is_quick():
    """Tell whether the profile `quick` is asked for."""
    return settings.get_current_profile_name() == "quick"
