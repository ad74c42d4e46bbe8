-- dblink's functions under names of our own, bound when they are made (BEGIN ATOMIC): whoever owns the schema that
-- dblink lies in, as a database's owner does public, may give it another name and make namesakes, which a
-- statement that is made anew would call as the superuser.
DO $do$
DECLARE
    dblink constant name := (SELECT n.nspname FROM pg_catalog.pg_extension e
                             JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'dblink');
BEGIN
    EXECUTE pg_catalog.format($sql$
CREATE OR REPLACE FUNCTION tensile.link_ask(link text, statement text) RETURNS text
LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC SELECT answer FROM %1$I.dblink(link, statement) AS t (answer text); END;

CREATE OR REPLACE FUNCTION tensile.link_open(name text, conninfo text) RETURNS text
LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC SELECT %1$I.dblink_connect_u(name, conninfo); END;

CREATE OR REPLACE FUNCTION tensile.link_close(name text) RETURNS text
LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC SELECT %1$I.dblink_disconnect(name); END;

CREATE OR REPLACE FUNCTION tensile.link_names() RETURNS text[]
LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC SELECT %1$I.dblink_get_connections(); END;
$sql$, dblink);
END
$do$;

COMMENT ON FUNCTION tensile.link_ask(text, text) IS 'The only value that a statement gives over a connection, which is open under a name, or described and opened for it alone. For the functions that use one alone.';
COMMENT ON FUNCTION tensile.link_open(text, text) IS 'Opens a connection under a name. For the functions that use one alone.';
COMMENT ON FUNCTION tensile.link_close(text) IS 'Closes the connection of a name. For the functions that use one alone.';
COMMENT ON FUNCTION tensile.link_names() IS 'The names of this session''s open connections; NULL where there are none. For the functions that use one alone.';
