-- The outbox, as the application writes it.
CREATE TABLE IF NOT EXISTS {{.Table}} (
  id             uuid PRIMARY KEY,
  aggregate_type varchar(100) NOT NULL,
  aggregate_id   varchar(100) NOT NULL,
  event_type     varchar(100) NOT NULL,
  payload        text NOT NULL,
  created_at     timestamp NOT NULL,
  published_at   timestamp
);
CREATE INDEX IF NOT EXISTS {{.Index}} ON {{.Table}} (created_at) WHERE published_at IS NULL;
