-- +goose Up
-- Events that cannot be published as they are, and later ones of their topic and key, which wait behind them.
CREATE TABLE pombo.parked_event (
  seq          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- their order
  slot         text NOT NULL,
  lane         bigint NOT NULL,  -- hash of topic and key; 0 for an event without a key, which has no order
  event_id     text,             -- in hex if it is no text
  topic        text,             -- NULL if the event has none
  key          bytea,
  reason       text,             -- NULL if the event waits behind another
  columns      text[] NOT NULL,
  cells        bytea[] NOT NULL, -- values of columns
  digest       bytea NOT NULL,   -- of cells, so that an event is not parked twice
  size         bigint NOT NULL,  -- bytes of cells
  committed_at timestamptz NOT NULL,
  parked_at    timestamptz NOT NULL DEFAULT now(),
  UNIQUE (slot, committed_at, digest)
);
CREATE INDEX parked_event_lane ON pombo.parked_event (slot, lane, seq);
CREATE INDEX parked_event_id ON pombo.parked_event (slot, hashtextextended(event_id, 0));
