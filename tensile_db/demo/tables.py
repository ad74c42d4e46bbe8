"""The demo's tables: real images as PNG files in a bytea column, and their labels as text."""

import psycopg
from psycopg import sql

from tensile_db.demo.images import ImageSet, as_png


def fill_table(connection: psycopg.Connection, name: str, images: ImageSet) -> int:
    """Make the table anew with a row for each image and return its size in bytes; the caller commits."""
    table = sql.Identifier(name)
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
    connection.execute(
        sql.SQL("CREATE TABLE {} (id integer PRIMARY KEY, image bytea NOT NULL, label text NOT NULL)").format(
            table
        )
    )
    # PNG is compressed already: compressing it again would only cost time.
    connection.execute(sql.SQL("ALTER TABLE {} ALTER image SET STORAGE EXTERNAL").format(table))
    connection.execute(
        sql.SQL("COMMENT ON TABLE {} IS {}").format(table, sql.Literal(f"{images.source}, as PNG files."))
    )
    copy = sql.SQL("COPY {} (id, image, label) FROM STDIN (FORMAT binary)").format(table)
    with connection.cursor() as cursor, cursor.copy(copy) as rows:
        rows.set_types(["int4", "bytea", "text"])
        for number, (pixels, label) in enumerate(zip(images.pixels, images.labels, strict=True), start=1):
            rows.write_row((number, as_png(pixels), label))
    connection.execute(sql.SQL("ANALYZE {}").format(table))
    size = connection.execute("SELECT pg_total_relation_size(%s::regclass)", [name]).fetchone()
    assert size is not None
    return int(size[0])
