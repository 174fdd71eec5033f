-- What stream.pgoutput was captured from, on PostgreSQL 15.18 with wal_level = logical:
--   createdb pombo_capture && psql -qAt -f stream.sql pombo_capture > stream.pgoutput
SET timezone TO 'UTC';
SET client_min_messages TO warning;

CREATE TYPE kind AS ENUM ('Order', 'Invoice');
CREATE TABLE outbox_event (
    created_at     timestamp DEFAULT '2026-01-02 03:04:05.678901',
    payload        text,
    id             uuid PRIMARY KEY,
    event_type     varchar(100),
    aggregate_type kind,
    aggregate_id   varchar(100),
    attachment     bytea
);
CREATE TABLE other (id int PRIMARY KEY, note text);
ALTER TABLE outbox_event ALTER payload SET STORAGE EXTERNAL;
CREATE PUBLICATION pombo FOR TABLE outbox_event, other; -- with updates, deletes and truncates
DO $$ BEGIN
    PERFORM pg_create_logical_replication_slot('pombo_capture', 'pgoutput');
    PERFORM pg_replication_origin_create('elsewhere');
END $$;

-- Two tables, NULL and '', characters of up to four bytes, bytes that are no text.
BEGIN;
INSERT INTO other VALUES (1, 'not an event');
INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, payload, attachment)
VALUES ('6E0C2D1E-8F0C-4A55-9A55-000000000001', 'Order', '42', 'OrderCreated', E'{"note": "üß😀\\"",\r\n"n": 1}', '\x00ff5c27');
INSERT INTO outbox_event (id) VALUES ('6e0c2d1e-8f0c-4a55-9a55-000000000002');
INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, payload, attachment)
VALUES ('6e0c2d1e-8f0c-4a55-9a55-000000000003', 'Invoice', '', '', '', '');
COMMIT;

-- A savepoint that is rolled back, and a transaction that is.
BEGIN;
INSERT INTO outbox_event (id, payload) VALUES ('6e0c2d1e-8f0c-4a55-9a55-000000000004', 'kept');
SAVEPOINT s;
INSERT INTO outbox_event (id, payload) VALUES ('6e0c2d1e-8f0c-4a55-9a55-000000000005', 'rolled back');
ROLLBACK TO s;
INSERT INTO outbox_event (id, payload) VALUES ('6e0c2d1e-8f0c-4a55-9a55-000000000006', 'kept too');
COMMIT;
BEGIN;
INSERT INTO outbox_event (id, payload) VALUES ('6e0c2d1e-8f0c-4a55-9a55-000000000007', 'rolled back');
ROLLBACK;

-- What a publication for inserts would not send, with a value that stays in its TOAST table.
BEGIN;
INSERT INTO outbox_event (id, payload) VALUES ('6e0c2d1e-8f0c-4a55-9a55-000000000008', repeat('toast', 500));
UPDATE outbox_event SET event_type = 'changed' WHERE id = '6e0c2d1e-8f0c-4a55-9a55-000000000008';
DELETE FROM outbox_event WHERE id = '6e0c2d1e-8f0c-4a55-9a55-000000000008';
DO $$ BEGIN PERFORM pg_logical_emit_message(true, 'pombo', 'hello'); END $$;
TRUNCATE other;
COMMIT;

-- The table changes under the stream, twice in one transaction.
BEGIN;
INSERT INTO outbox_event (id, payload) VALUES ('6e0c2d1e-8f0c-4a55-9a55-000000000009', 'before');
ALTER TABLE outbox_event RENAME payload TO body;
ALTER TABLE outbox_event DROP COLUMN created_at;
ALTER TABLE outbox_event ADD COLUMN trace text DEFAULT 't';
ALTER TABLE outbox_event RENAME body TO payload;
INSERT INTO outbox_event (id, payload) VALUES ('6e0c2d1e-8f0c-4a55-9a55-000000000010', 'after');
COMMIT;

-- A transaction that came from another server.
DO $$ BEGIN PERFORM pg_replication_origin_session_setup('elsewhere'); END $$;
INSERT INTO outbox_event (id, payload) VALUES ('6e0c2d1e-8f0c-4a55-9a55-000000000011', 'from elsewhere');
DO $$ BEGIN PERFORM pg_replication_origin_session_reset(); END $$;

-- COPY: one LSN for several rows.
COPY outbox_event (id, payload) FROM stdin;
6e0c2d1e-8f0c-4a55-9a55-000000000012	first
6e0c2d1e-8f0c-4a55-9a55-000000000013	second
\.

SELECT encode(data, 'hex')
FROM pg_logical_slot_get_binary_changes('pombo_capture', NULL, NULL,
    'proto_version', '1', 'publication_names', 'pombo', 'messages', 'true');
