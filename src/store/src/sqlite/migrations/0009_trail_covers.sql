-- From now on, the audit trail covers API keys and pins of tool definitions. The fact is `pending` until an entry with the
-- hashes of the existing keys and pins has been written, which happens in the same transaction.
INSERT INTO facts (name, value) VALUES ('trail_covers_keys_and_pins', 'pending');
