-- +goose Up
-- Events that cannot be published as they are, and later ones of their topic and key, which wait behind them.
CREATE TABLE pombo.parked_event (
  seq          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- their order
  slot         text NOT NULL,
  lane         bigint NOT NULL, -- hash of topic and key, 0 for an event without a key
  event_id     text,            -- NULL if the row's is, in hex if it is no text
  topic        text,            -- NULL if it has none
  key          bytea,
  reason       text,            -- NULL if it waits behind another
  columns      text[] NOT NULL,
  row          bytea[] NOT NULL, -- values of columns, text as UTF-8
  digest       bytea NOT NULL,   -- of row: parking it again after a crash adds nothing
  size         bigint NOT NULL,  -- bytes of row
  committed_at timestamptz NOT NULL,
  parked_at    timestamptz NOT NULL DEFAULT now(),
  UNIQUE (slot, committed_at, digest)
);
CREATE INDEX parked_event_lane ON pombo.parked_event (slot, lane, seq);
CREATE INDEX parked_event_id ON pombo.parked_event (slot, md5(event_id));
