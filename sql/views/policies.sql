-- Filled in at every install from scheduler/policies: what this version's workers can plan by.
CREATE OR REPLACE VIEW tensile.policies AS
SELECT known.name FROM unnest(ARRAY[@policies@]) AS known (name);

COMMENT ON VIEW tensile.policies IS 'The planners that a job may name as its policy.';
COMMENT ON COLUMN tensile.policies.name IS 'The name to give to tensile_train.';
