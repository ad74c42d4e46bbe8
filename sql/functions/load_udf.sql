-- The modules of tensile_db.udf, carried inside the database.  They are imported from the text below by
-- Python's own machinery and put into GD, once a session and once again after an upgrade.
CREATE OR REPLACE FUNCTION tensile.load_udf() RETURNS void
LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $python$
import importlib, importlib.abc, importlib.util, sys
sources = @udf_sources@
packages = {name.rpartition(".")[0] for name in sources}

class Bundle(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    def find_spec(self, name, path=None, target=None):
        known = name in sources or name in packages
        return importlib.util.spec_from_loader(name, self, is_package=name in packages) if known else None

    def is_package(self, name):
        return name in packages

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
