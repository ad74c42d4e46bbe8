-- The group roles.  Roles belong to the whole cluster: another database, or another install at this very
-- moment, may have made them.
DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['tensile_user', 'tensile_admin', 'tensile_worker', 'tensile_priority'] LOOP
        BEGIN
            EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', role);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
    END LOOP;
    -- The worker is made a member of every submitter so that it can SET ROLE to one.  Without NOINHERIT it
    -- would have the rights of all of them at all times.
    IF (SELECT rolinherit FROM pg_catalog.pg_roles WHERE rolname = 'tensile_worker') THEN
        ALTER ROLE tensile_worker NOINHERIT;
    END IF;
    IF NOT pg_catalog.pg_has_role('tensile_admin', 'tensile_user', 'MEMBER') THEN
        GRANT tensile_user TO tensile_admin;
    END IF;
    IF NOT pg_catalog.pg_has_role('tensile_admin', 'tensile_priority', 'MEMBER') THEN
        GRANT tensile_priority TO tensile_admin;
    END IF;
END
$$;

COMMENT ON ROLE tensile_user IS 'May submit jobs to tensile_db, and see, pause, cancel and delete the own ones.';
COMMENT ON ROLE tensile_admin IS 'May see, pause, cancel and delete every job of tensile_db, set quotas and import pretrained weights.';
COMMENT ON ROLE tensile_priority IS 'May give jobs of tensile_db a priority above 0.';
COMMENT ON ROLE tensile_worker IS 'Group of the logins of tensile_db workers; may become each submitter.';
COMMENT ON SCHEMA tensile IS 'Deep learning in the database: the catalog and functions of tensile_db.';
COMMENT ON TABLE tensile.migrations IS 'The newest migration that was applied.';
COMMENT ON COLUMN tensile.migrations.version_num IS 'Its revision.';
