-- +goose Up
-- The slots that setup has made. A slot that is remembered here and gone was lost with events in it.
CREATE TABLE pombo.slot (
  name              text PRIMARY KEY,
  publication       text NOT NULL,
  database          text NOT NULL,
  database_oid      oid NOT NULL,
  system_identifier bigint NOT NULL,
  timeline          integer NOT NULL,
  lsn               pg_lsn NOT NULL, -- confirmed by the slot when it was remembered
  created_at        timestamptz NOT NULL DEFAULT now()
);
