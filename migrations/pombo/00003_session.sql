-- +goose Up
-- From now on lsn follows the slot, so that one that was moved or made anew is found at the next start.
ALTER TABLE pombo.slot ADD COLUMN session text; -- that reads the slot; NULL: none does, and the slot is not beyond lsn
UPDATE pombo.slot SET session = 'unknown';
