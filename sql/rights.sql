-- Who may do what with the tables.  A row belongs to a job, and a job to the role that submitted it.
--
-- Nobody keeps what he was given before, or by ALTER DEFAULT PRIVILEGES, but to look: with a trigger on a table, a
-- function in the schema, or what acts as another role, he could have all that a superuser can.  The groups are given
-- anew, below.
DO $$
DECLARE
    groups constant oid[] := ARRAY['tensile_user', 'tensile_admin', 'tensile_worker', 'tensile_priority']::regrole[];
    given record;
BEGIN
    FOR given IN
        SELECT a.privilege_type AS privilege, 'SCHEMA tensile' AS object, a.grantee
        FROM pg_catalog.pg_namespace n CROSS JOIN pg_catalog.aclexplode(n.nspacl) a
        WHERE n.nspname = 'tensile' AND a.grantee <> ALL (n.nspowner || groups)
        UNION
        SELECT a.privilege_type, 'TABLE ' || c.oid::regclass, a.grantee
        FROM pg_catalog.pg_class c CROSS JOIN pg_catalog.aclexplode(c.relacl) a
        WHERE c.relnamespace = 'tensile'::regnamespace AND c.relkind IN ('r', 'p', 'v')
          AND a.grantee <> ALL (c.relowner || groups) AND a.privilege_type <> 'SELECT'
        UNION
        SELECT pg_catalog.format('%s (%I)', a.privilege_type, t.attname), 'TABLE ' || c.oid::regclass, a.grantee
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute t ON t.attrelid = c.oid AND NOT t.attisdropped
        CROSS JOIN pg_catalog.aclexplode(t.attacl) a
        WHERE c.relnamespace = 'tensile'::regnamespace AND c.relkind IN ('r', 'p', 'v')
          AND a.grantee <> ALL (c.relowner || groups) AND a.privilege_type <> 'SELECT'
        UNION
        SELECT a.privilege_type, 'ROUTINE ' || p.oid::regprocedure, a.grantee
        FROM pg_catalog.pg_proc p CROSS JOIN pg_catalog.aclexplode(p.proacl) a
        WHERE p.pronamespace = 'tensile'::regnamespace AND a.grantee <> ALL (p.proowner || groups)
          -- dblink's are the administrator's to give.
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
                          WHERE d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e')
    LOOP
        EXECUTE pg_catalog.format('REVOKE %s ON %s FROM %s CASCADE', given.privilege, given.object,
            CASE given.grantee WHEN 0 THEN 'PUBLIC' ELSE given.grantee::regrole::text END);
    END LOOP;
END
$$;

REVOKE ALL ON SCHEMA tensile FROM PUBLIC, tensile_user, tensile_admin, tensile_worker, tensile_priority;
GRANT USAGE ON SCHEMA tensile TO tensile_user, tensile_worker;

REVOKE ALL ON ALL TABLES IN SCHEMA tensile
    FROM PUBLIC, tensile_user, tensile_admin, tensile_worker, tensile_priority;
GRANT SELECT ON ALL TABLES IN SCHEMA tensile TO tensile_user, tensile_worker;
-- What makes a request, by columns: whoever may update or delete any of a table's rows may lock it as a whole.
-- And no column that tells of its way through a worker.
GRANT INSERT (kind, submitted_by, owner, client_pid, client_started_at, architecture, source_oid, source_name,
              target, features, model, model_id, model_version, epochs, batch_size, optimizer, learning_rate,
              validation, seed, priority, memory_limit_nbytes, policy, options, settings, initial_model_id,
              pretrained_id)
    ON tensile.jobs TO tensile_user;
GRANT INSERT ON tensile.search_requests TO tensile_user;
GRANT INSERT (model_id, requested_by, client_pid, client_started_at, form, wants_probabilities,
              features), UPDATE (asked)
    ON tensile.serving_requests TO tensile_user;
GRANT UPDATE (cancel_requested, pause_requested, priority) ON tensile.jobs TO tensile_user;
GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tensile TO tensile_worker;
REVOKE INSERT, UPDATE, DELETE
    ON tensile.settings, tensile.homes, tensile.migrations, tensile.quotas, tensile.pretrained_weights,
    tensile.pretrained_tensors
    FROM tensile_worker;
GRANT INSERT, UPDATE, DELETE ON tensile.quotas TO tensile_admin;
GRANT INSERT (name, architecture, height, width, mean, scale, nbytes), DELETE
    ON tensile.pretrained_weights TO tensile_admin;
GRANT INSERT ON tensile.pretrained_tensors TO tensile_admin;
-- Whoever could lock its rows would keep a role from submitting.
REVOKE ALL ON tensile.quota_locks FROM tensile_user, tensile_worker;

-- A policy's subselects without a column of the row are evaluated once a query, not once a row.
DO $$
DECLARE
    mine constant text :=
        -- Nothing by the numbers of another database.
        '(SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user AND tensile.is_at_home())';
    admin constant text := '(SELECT pg_catalog.pg_has_role(current_user, ''tensile_admin'', ''USAGE''))';
    -- One look into a key, or one at all jobs, as the query needs it: IN would be the latter for each query.
    of_job constant text := 'EXISTS (SELECT FROM tensile.jobs j WHERE j.id = job_id)';
    of_plan constant text :=
        'digest IN (SELECT pg_catalog.unnest(ARRAY[graph_digest, captured_digest]) FROM tensile.plans)';
    -- table, command, what the role may see or do
    rules constant text[][] := ARRAY[
        ['jobs', 'SELECT', 'submitted_by = ' || mine || ' OR ' || admin],
        -- One that serves begins with a request: it counts for no quota of jobs, and comes where all places are taken.
        ['jobs', 'INSERT', 'submitted_by = ' || mine || ' AND owner = current_user AND kind <> ''serve''
                            AND (model_id IS NULL OR model_id IN (SELECT id FROM tensile.models))
                            AND (initial_model_id IS NULL OR initial_model_id IN (SELECT id FROM tensile.models))'],
        ['jobs', 'UPDATE', 'submitted_by = ' || mine || ' OR ' || admin],
        ['job_events', 'SELECT', of_job],
        ['search_requests', 'SELECT', of_job],
        ['search_requests', 'INSERT', of_job],
        ['search_trials', 'SELECT', of_job],
        ['predictions', 'SELECT', of_job],
        ['serving_requests', 'SELECT', 'requested_by = ' || mine],
        ['serving_requests', 'INSERT', 'requested_by = ' || mine || ' AND model_id IN (SELECT id FROM tensile.models)'],
        ['serving_requests', 'UPDATE', 'requested_by = ' || mine],
        ['latency_logs', 'SELECT', of_job],
        ['plans', 'SELECT', of_job],
        ['plan_events', 'SELECT', of_job],
        ['memory_timeline_points', 'SELECT', of_job],
        ['memory_peaks', 'SELECT', of_job],
        ['training_metrics', 'SELECT', of_job],
        ['graphs', 'SELECT', of_plan],
        ['graph_tensors', 'SELECT', of_plan],
        ['graph_ops', 'SELECT', of_plan],
        ['models', 'SELECT', 'owned_by = ' || mine || ' OR ' || admin],
        ['model_weights', 'SELECT', 'model_id IN (SELECT id FROM tensile.models)'],
        ['checkpoints', 'SELECT', of_job],
        ['checkpoint_tensors', 'SELECT', 'checkpoint_id IN (SELECT id FROM tensile.checkpoints)'],
        ['pretrained_weights', 'SELECT', 'true'],
        ['pretrained_weights', 'INSERT', admin],
        ['pretrained_weights', 'DELETE', admin],
        ['pretrained_tensors', 'SELECT', 'true'],
        ['pretrained_tensors', 'INSERT', admin],
        ['quotas', 'SELECT', 'role_oid IN (0, ' || mine || ') OR ' || admin],
        ['quotas', 'INSERT', admin],
        ['quotas', 'UPDATE', admin],
        ['quotas', 'DELETE', admin],
        ['workers', 'SELECT', 'true'],
        ['devices', 'SELECT', 'true'],
        ['latency_samples', 'SELECT', 'true'],
        ['latency_models', 'SELECT', 'true'],
        ['op_workspaces', 'SELECT', 'true'],
        ['architectures', 'SELECT', 'true'],
        ['homes', 'SELECT', 'true'],
        -- How the server reaches itself may hold a password.
        ['settings', 'SELECT', 'name <> ''loopback''']
    ];
    rule text[];
    policy record;
BEGIN
    FOR policy IN SELECT policyname, tablename FROM pg_catalog.pg_policies WHERE schemaname = 'tensile' LOOP
        EXECUTE pg_catalog.format('DROP POLICY %I ON tensile.%I', policy.policyname, policy.tablename);
    END LOOP;
    FOREACH rule SLICE 1 IN ARRAY rules LOOP
        EXECUTE pg_catalog.format(
            'CREATE POLICY %I ON tensile.%I FOR %s TO tensile_user %s (%s)',
            'user_' || lower(rule[2]), rule[1], rule[2],
            CASE rule[2] WHEN 'INSERT' THEN 'WITH CHECK' ELSE 'USING' END, rule[3]);
    END LOOP;
    FOR policy IN
        SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = 'tensile' AND rowsecurity
    LOOP
        EXECUTE pg_catalog.format(
            'CREATE POLICY worker ON tensile.%I TO tensile_worker USING (%s)', policy.tablename,
            -- A worker's login becomes no superuser.
            CASE policy.tablename WHEN 'settings' THEN 'name <> ''loopback''' ELSE 'true' END);
    END LOOP;
    FOR policy IN SELECT policyname, tablename FROM pg_catalog.pg_policies WHERE schemaname = 'tensile' LOOP
        EXECUTE pg_catalog.format(
            'COMMENT ON POLICY %I ON tensile.%I IS %L', policy.policyname, policy.tablename,
            CASE policy.policyname WHEN 'worker' THEN 'Workers serve all users.'
            ELSE 'Users have to do with what is theirs.' END);
    END LOOP;
END
$$;

-- Nobody may call anything, but for one function, but users and workers, and nobody at all what acts as another role, or
-- is for superusers.
DO $$
DECLARE
    function record;
BEGIN
    FOR function IN
        SELECT p.oid::regprocedure::text AS identity, p.proname AS name, p.prorettype = 'trigger'::regtype AS trigger,
               EXISTS (SELECT FROM pg_catalog.pg_depend d
                       WHERE d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
                       AND d.refobjid <> ALL (SELECT e.oid FROM pg_catalog.pg_extension e
                                              WHERE e.extname = 'tensile_db')) AS foreign_one
        FROM pg_catalog.pg_proc p WHERE p.pronamespace = 'tensile'::regnamespace
    LOOP
        EXECUTE pg_catalog.format(
            'REVOKE ALL ON ROUTINE %s FROM PUBLIC, tensile_user, tensile_admin, tensile_worker, tensile_priority',
            function.identity);
        CONTINUE WHEN function.trigger OR function.foreign_one OR function.name IN (
            'answer_with_error', 'as_caller', 'can_be_reached', 'find_owners', 'link_ask', 'link_close', 'link_names', 'link_open',
            'lock_quota', 'over_connection', 'over_loopback', 'over_serving_connection', 'quote_conninfo', 'signer',
            'unsign');
        EXECUTE pg_catalog.format('GRANT EXECUTE ON ROUTINE %s TO %s', function.identity,
            CASE WHEN function.name IN ('cancel_abandoned', 'delete_abandoned_requests', 'pause_over_quota', 'refresh_names')
            THEN 'tensile_worker' WHEN function.name = 'current_home' THEN 'tensile_user, tensile_worker'
            -- The views ask it, and an administrator may let anybody read them.
            WHEN function.name = 'is_at_home' THEN 'PUBLIC' ELSE 'tensile_user' END);
    END LOOP;
END
$$;
