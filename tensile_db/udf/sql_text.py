"""Names and texts as SQL has them, for hints that people copy: without a connection, in any encoding."""


def as_identifier(name: str) -> str:
    """Return a name as SQL, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def as_literal(text: str) -> str:
    """Return a text as SQL, whatever standard_conforming_strings is."""
    quoted = "'" + text.replace("'", "''") + "'"
    return "E" + quoted.replace("\\", "\\\\") if "\\" in text else quoted
