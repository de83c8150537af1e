-- After a change of unknown outcome its target stays taken: until `taken_ms` (milliseconds of the Unix epoch), or until a
-- person has settled it. Every row keeps others from the target until then.
ALTER TABLE claims ADD COLUMN taken_ms BIGINT;
DROP INDEX claims_by_target;
DELETE FROM claims AS lapsed USING claims AS other
    WHERE lapsed.lapsed_until IS NOT NULL AND other.target = lapsed.target AND other.change_id <> lapsed.change_id
      AND (other.lapsed_until IS NULL
           OR (other.lapsed_until, other.change_id) > (lapsed.lapsed_until, lapsed.change_id));
CREATE UNIQUE INDEX claims_by_target ON claims (target);
