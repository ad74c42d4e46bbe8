"""The code of SQL functions as if it were another server's."""

#: As if the server had another Python now, or the sources were others: told by 4 bytes, and by 16 after them.
CHANGED = """
    DO $$
    BEGIN
        EXECUTE format(
            'CREATE OR REPLACE FUNCTION tensile.udf_code() RETURNS bytea LANGUAGE sql AS %%L',
            format('SELECT %%L::bytea', set_byte(tensile.udf_code(), {byte}, 0)));
    END
    $$
"""
