package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pombo-cdc/pombo/replication"
	"github.com/pombo-cdc/pombo/sink"
)

// What a role needs on pombo.parked_event.
const (
	rightsToPark   = "SELECT, INSERT"
	rightsToManage = "SELECT, UPDATE, DELETE"
)

// CheckParking reports whether the session's role can park events, without changing anything. Its error is an ActionError if
// it cannot.
func CheckParking(ctx context.Context, conn *pgx.Conn) error {
	return checkRights(ctx, conn, rightsToPark)
}

// CheckManaging reports in the same way whether it can retry and discard them.
func CheckManaging(ctx context.Context, conn *pgx.Conn) error {
	return checkRights(ctx, conn, rightsToManage)
}

func checkRights(ctx context.Context, conn *pgx.Conn, rights string) error {
	const query = `
SELECT current_user, (
  SELECT has_schema_privilege(n.oid, 'USAGE') AND (SELECT bool_and(has_table_privilege(c.oid, r)) FROM unnest(string_to_array($1, ', ')) r)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = 'pombo' AND c.relname = 'parked_event')`
	var (
		role    string
		granted *bool // nil: there is no such table
	)
	err := conn.QueryRow(ctx, query, rights).Scan(&role, &granted)
	switch {
	case err != nil:
		return fmt.Errorf("read privileges on pombo.parked_event: %w", err)
	case granted == nil:
		return missingTable()
	case !*granted:
		return missingRights(role, rights)
	}
	return nil
}

func missingTable() error {
	return &replication.ActionError{
		Problem: "table pombo.parked_event, where events that cannot be published are kept, does not exist",
		Cure:    "run `pombo setup`",
	}
}

func missingRights(role, rights string) error {
	return &replication.ActionError{
		Problem: fmt.Sprintf("role %q lacks %s on table pombo.parked_event", role, rights),
		Cure: fmt.Sprintf("run `GRANT USAGE ON SCHEMA pombo TO %[1]s; GRANT %[2]s ON pombo.parked_event TO %[1]s`",
			pgx.Identifier{role}.Sanitize(), rights),
	}
}

// passes reports whether trying again can help.
func passes(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return !errors.Is(err, sink.ErrFenced) // the connection
	}
	switch pgErr.Code[:min(2, len(pgErr.Code))] {
	case "22", // a value that the server cannot take, such as a character that its encoding lacks
		"42", // no such table or column, no privilege
		"3F", // no such schema
		"54": // larger than a row can be
		return false
	case "23": // a constraint, unless another instance has just parked the same
		return pgErr.Code == "23505"
	default: // starting up, too many connections, disk full, deadlocks, locks that are not to be had, a standby, passwords
		return true
	}
}

// explain adds the way out to an error that trying again does not cure.
func explain(err error, role, rights string) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	switch pgErr.Code {
	case "42P01", "3F000": // undefined_table, invalid_schema_name
		return missingTable()
	case "42703": // undefined_column
		return &replication.ActionError{
			Problem: "table pombo.parked_event is of another version: " + pgErr.Message,
			Cure:    "run `pombo setup` of the newest version that is in use",
		}
	case "42501": // insufficient_privilege
		return missingRights(role, rights)
	}
	if passes(err) {
		return err
	}
	return &replication.ActionError{
		Problem: fmt.Sprintf("table pombo.parked_event cannot take the event: %s (SQLSTATE %s, %s)", pgErr.Message, pgErr.Code, pgErr.Where),
		Cure:    "correct what keeps it from its topic",
	}
}
