"""How long tests wait for what must come."""

#: Long, for machines that are slow and busy: only a test that fails waits until then.
PATIENCE_S = 240
