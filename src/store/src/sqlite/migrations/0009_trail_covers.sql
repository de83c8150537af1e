-- From here on the audit trail tells of keys and of the pins of definitions too. Where there were some before, an entry
-- with a hash of each is written together with this ('pending' until then).
INSERT INTO facts (name, value) VALUES ('trail_covers_keys_and_pins', 'pending');
