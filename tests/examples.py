"""How many examples a property-based test tries: a fifth with the profile `quick`, as in `make check`."""

from hypothesis import settings


def examples(most, **others):
    """Return the settings of a test that tries up to `most` examples."""
    quick = settings.get_current_profile_name() == "quick"
    return settings(max_examples=most // 5 if quick else most, deadline=None, **others)
