-- What ran, or was reached, under the server's name when a reviewer accepted the definition: a hash of its command or
-- addresses. NULL for acceptances that are older than this column, until the server is seen in a configuration.
ALTER TABLE tool_pins ADD COLUMN accepted_target TEXT;
