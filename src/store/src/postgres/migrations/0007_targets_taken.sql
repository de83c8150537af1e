-- If the outcome of a change is unknown, its row stays and keeps other changes from the target until `taken_ms`
-- (milliseconds of the Unix epoch), or until a person settles the change. A target therefore has at most one row.
ALTER TABLE claims ADD COLUMN taken_ms BIGINT;
DROP INDEX claims_by_target;
DELETE FROM claims AS lapsed USING claims AS other
    WHERE lapsed.lapsed_until IS NOT NULL AND other.target = lapsed.target AND other.change_id <> lapsed.change_id
      AND (other.lapsed_until IS NULL
           OR (other.lapsed_until, other.change_id) > (lapsed.lapsed_until, lapsed.change_id));
CREATE UNIQUE INDEX claims_by_target ON claims (target);
