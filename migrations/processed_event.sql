-- The consumer's side: an event's id is written here in the transaction that handles it, so that
-- a second delivery is noticed.
CREATE TABLE IF NOT EXISTS {{.Processed}} (
  event_id     uuid PRIMARY KEY,
  processed_at timestamp NOT NULL DEFAULT now()
);
