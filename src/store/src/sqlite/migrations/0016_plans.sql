-- The plan of a change that is a step of one, its position from 0, and whether no step follows. `run_after_ms` is the time in
-- milliseconds of the Unix epoch until which the approval of the change can be undone.
ALTER TABLE changes ADD COLUMN plan_id TEXT;
ALTER TABLE changes ADD COLUMN plan_index INTEGER;
ALTER TABLE changes ADD COLUMN plan_last INTEGER;
ALTER TABLE changes ADD COLUMN run_after_ms INTEGER;
CREATE UNIQUE INDEX changes_by_plan ON changes (plan_id, plan_index) WHERE plan_id IS NOT NULL;
