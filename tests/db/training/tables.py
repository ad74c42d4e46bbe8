"""Tables that a test adds for a real worker to read."""


def add_table(database, name, definition):
    """Run the definition of a table that has an id; make it anna's, with that key."""
    database.execute(definition)
    database.execute(f"ALTER TABLE {name} OWNER TO anna")
    database.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
