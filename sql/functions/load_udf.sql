-- The modules of tensile_db.udf, carried inside the database.  They are imported from the text below by
-- Python's own machinery and put into GD, once a session and once again after an upgrade.
CREATE OR REPLACE FUNCTION tensile.load_udf() RETURNS void
LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $python$
import importlib, importlib.machinery, sys
sources = @udf_sources@
packages = {name.rpartition(".")[0] for name in sources}

# No subclass of importlib.abc's, whose import would take a fifth of the session's first call.
class Bundle:
    def find_spec(self, name, path=None, target=None):
        if name in sources or name in packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=name in packages)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        name = module.__spec__.name
        exec(compile(self.get_source(name), f"<{name}>", "exec", dont_inherit=True), module.__dict__)

    def get_source(self, name):
        return sources.get(name, "")

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
