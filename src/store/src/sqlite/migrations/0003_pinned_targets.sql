-- The hash of the server's command or addresses at the time of the acceptance. It is null for acceptances that are older
-- than this column, until the gateway finds the server in its configuration.
ALTER TABLE tool_pins ADD COLUMN accepted_target TEXT;
