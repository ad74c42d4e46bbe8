"""Of which package an architecture is, as workers have told."""

from tensile_db.catalog import workers


def test_what_a_package_calls_its_architecture_is_known_after_its_worker_is_gone(engine):
    with engine.begin() as conn:
        workers.write_architectures(conn, [("wide", "plugin", "their.nets:wide"), ("vgg", "alias", "vgg16")])
    with engine.begin() as conn:
        workers.write_architectures(conn, [("vgg", "alias", "vgg16")])
        assert workers.offered_by(conn, "wide") == "their.nets:wide"
        assert workers.offered_by(conn, "vgg") is None
        assert workers.offered_by(conn, "narrow") is None
