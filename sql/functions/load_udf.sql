-- The modules of tensile_db.udf, carried inside the database.  To compile them takes a third of a session's first
-- call, so that it is done once, as they are installed (udf_code.sql); sessions of another Python compile them
-- again, each for itself.
CREATE OR REPLACE FUNCTION tensile.compile_udf() RETURNS bytea
LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $python$
import marshal, zlib
# As importlib.util has it, whose import takes longer.
from _frozen_importlib_external import MAGIC_NUMBER
sources = @udf_sources@
codes = {
    name: compile(source, f"<{name}>", "exec", dont_inherit=True) for name, source in sources.items()
}
# What forms from 3 on come to depends on what else the session holds; with 2 equal sources are equal bytes.
# From Python 3.14 on, whose marshal has form 5, code may hold what 2 has not.
form = 2 if marshal.version < 5 else marshal.version
return MAGIC_NUMBER + b"@udf_digest@" + zlib.compress(marshal.dumps(codes, form))
$python$;

COMMENT ON FUNCTION tensile.compile_udf() IS 'Compiles the modules behind tensile_db''s functions, as tensile.udf_code() has them.';

-- The modules are imported by Python's own machinery and put into GD, once a session and once again after an
-- upgrade.  What marshal reads is what the owner of these functions has installed, as the functions are.
CREATE OR REPLACE FUNCTION tensile.load_udf() RETURNS void
LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $python$
import importlib, importlib.machinery, marshal, sys, zlib
from _frozen_importlib_external import MAGIC_NUMBER

begins = MAGIC_NUMBER + b"@udf_digest@"
code = plpy.execute("SELECT tensile.udf_code() AS code")[0]["code"]
if not code.startswith(begins):
    # Of other sources where an upgrade came in between: these answer this call, and the next one loads again.
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
