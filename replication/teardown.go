package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Teardown drops the slot, then the publication, and forgets the slot, and tells out what it did. Tables
// stay. Before it changes anything it looks for everything that stands in the way, and its error
// joins an ActionError for each.
func Teardown(ctx context.Context, conn *pgx.Conn, src Source, out io.Writer) error {
	c, err := readCatalog(ctx, conn, src)
	if err != nil {
		return err
	}
	r, err := readRights(ctx, conn, src)
	if err != nil {
		return err
	}
	sharers, err := c.sharers(ctx, conn, src)
	if err != nil {
		return err
	}
	if err := errors.Join(slices.Concat(c.checkRole(), c.checkDroppable(src, sharers), checkState(c, r))...); err != nil {
		return err
	}

	if c.Slot == nil {
		fmt.Fprintf(out, "slot %s does not exist\n", src.Slot)
	} else {
		if err := dropSlot(ctx, conn, src); err != nil {
			return err
		}
		fmt.Fprintf(out, "dropped slot %s\n", src.Slot)
	}
	switch {
	case c.Publication == nil:
		fmt.Fprintf(out, "publication %s does not exist\n", src.Publication)
	case len(sharers) > 0:
		fmt.Fprintf(out, "publication %s stays: slot %s uses it too\n", src.Publication, sharers[0])
	default:
		if _, err := conn.Exec(ctx, "DROP PUBLICATION "+src.publication()); err != nil {
			return fmt.Errorf("drop publication %q: %w", src.Publication, err)
		}
		fmt.Fprintf(out, "dropped publication %s\n", src.Publication)
	}
	if !c.MayRecall {
		return nil
	}
	forgotten, err := conn.Exec(ctx, `DELETE FROM pombo.slot WHERE name = $1`, src.Slot)
	if err != nil {
		return fmt.Errorf("forget slot %q: %w", src.Slot, err)
	}
	if forgotten.RowsAffected() > 0 {
		fmt.Fprintf(out, "deleted record of slot %s from pombo.slot\n", src.Slot)
	}
	return nil
}

// sharers are the other slots that were made with the publication and exist.
func (c *catalog) sharers(ctx context.Context, conn *pgx.Conn, src Source) ([]string, error) {
	if !c.MayRecall {
		return nil, nil
	}
	const query = `
SELECT m.name FROM pombo.slot m JOIN pg_replication_slots s ON s.slot_name = m.name AND s.datoid = m.database_oid
WHERE m.publication = $1 AND m.name <> $2`
	rows, err := conn.Query(ctx, query, src.Publication, src.Slot)
	if err != nil {
		return nil, fmt.Errorf("read pombo.slot: %w", err)
	}
	sharers, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read pombo.slot: %w", err)
	}
	return sharers, nil
}

// checkDroppable looks whether slot and publication are Pombo's to drop.
func (c *catalog) checkDroppable(src Source, sharers []string) []error {
	var findings []error
	if c.Slot != nil {
		if c.Slot.Active {
			findings = append(findings, finding(stopReader, "slot %q is active, read by the session of pid %d", src.Slot, c.Slot.ActivePID))
		}
		if c.Slot.WALStatus != "lost" {
			findings = append(findings, c.checkSlot(src)...)
		}
	}
	if c.Publication != nil && len(sharers) == 0 && !c.Publication.Owned {
		findings = append(findings, finding(
			fmt.Sprintf("run `ALTER PUBLICATION %s OWNER TO %s`", src.publication(), pgx.Identifier{c.Role.Name}.Sanitize()),
			"role %q does not own publication %q", c.Role.Name, src.Publication))
	}
	return findings
}

// stopReader is the way out where a slot is active.
const stopReader = "stop `pombo run`, wherever it runs, and try again"

func dropSlot(ctx context.Context, conn *pgx.Conn, src Source) error {
	_, err := conn.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, src.Slot)
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && pgErr.Code == "55006": // object_in_use: somebody has been quicker
		return finding(stopReader, "%s", pgErr.Message)
	case err != nil:
		return fmt.Errorf("drop slot %q: %w", src.Slot, err)
	}
	return nil
}
