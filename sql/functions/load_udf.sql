-- The modules of tensile_db.udf, carried inside the database.  To compile them takes half of a session's first
-- call, so that it is done here, by the server's own interpreter; a later one compiles them again, each time.
CREATE OR REPLACE FUNCTION tensile.compile_udf() RETURNS bytea
LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $python$
import marshal, zlib
from _frozen_importlib_external import MAGIC_NUMBER
sources = @udf_sources@
codes = {
    name: compile(source, f"<{name}>", "exec", dont_inherit=True) for name, source in sources.items()
}
# A later form of marshal's depends on what else the session holds; with this one equal sources are equal bytes.
return MAGIC_NUMBER + b"@udf_digest@" + zlib.compress(marshal.dumps(codes, 2))
$python$;

COMMENT ON FUNCTION tensile.compile_udf() IS 'Compiles the modules behind tensile_db''s functions, as tensile.udf_code() has them.';

DO $$
BEGIN
    EXECUTE pg_catalog.format(
        'CREATE OR REPLACE FUNCTION tensile.udf_code() RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE'
        ' SET search_path = pg_catalog, pg_temp AS %L',
        pg_catalog.format('SELECT %L::pg_catalog.bytea', tensile.compile_udf()));
END
$$;

COMMENT ON FUNCTION tensile.udf_code()
IS 'The modules behind tensile_db''s functions: what tells Pythons apart, a digest of the sources, compiled code.';

-- They are imported by Python's own machinery and put into GD, once a session and once again after an upgrade.
CREATE OR REPLACE FUNCTION tensile.load_udf() RETURNS void
LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $python$
import importlib, importlib.machinery, marshal, sys, zlib
from _frozen_importlib_external import MAGIC_NUMBER

begins = MAGIC_NUMBER + b"@udf_digest@"
code = plpy.execute("SELECT tensile.udf_code() AS code")[0]["code"]
if not code.startswith(begins):
    code = plpy.execute("SELECT tensile.compile_udf() AS code")[0]["code"]
codes = marshal.loads(zlib.decompress(code[len(begins):]))
packages = {name.rpartition(".")[0] for name in codes}

# No subclass of importlib.abc's, whose import would take a fifth of the session's first call.
class Bundle:
    def find_spec(self, name, path=None, target=None):
        if name in codes or name in packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=name in packages)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        if module.__spec__.name in codes:
            exec(codes[module.__spec__.name], module.__dict__)

for name in [name for name in sys.modules if name in packages or name.startswith("tensile_db.")]:
    del sys.modules[name]
bundle = Bundle()
sys.meta_path.insert(0, bundle)
try:
    GD["tensile @udf_digest@"] = importlib.import_module("tensile_db.udf.edge")
finally:
    sys.meta_path.remove(bundle)
$python$;

COMMENT ON FUNCTION tensile.load_udf() IS 'Loads the modules behind tensile_db''s functions into this session.';
