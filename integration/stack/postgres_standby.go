package stack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// StartStandby starts a hot standby that streams from a native server, with the same settings but for those of opts. Its
// version is the server's, which keeps WAL for it until its own end.
//
// It is made in the way of pg_basebackup, which the Maven artefacts lack, by the low-level backup functions: see the chapter
// Continuous Archiving and Point-in-Time Recovery of the Postgres documentation.
func (p *Postgres) StartStandby(ctx context.Context, opts PostgresOptions) (*Postgres, error) {
	if p.dataDir == "" {
		return nil, p.instance.unsupported("make a standby of")
	}
	s := newPostgres("standby of Postgres")
	if err := s.runStandby(ctx, p, opts); err != nil {
		return nil, fmt.Errorf("start standby: %w", errors.Join(err, s.Close()))
	}
	tell(opts.Log, "Standby: %s", s.Origin())
	return s, nil
}

// Promote ends a standby's recovery and waits until it takes writes.
func (p *Postgres) Promote(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var promoted bool
	if err := conn.QueryRow(ctx, "SELECT pg_promote()").Scan(&promoted); err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	if !promoted {
		return errors.New("promote: the server still recovers")
	}
	return nil
}

func (p *Postgres) runStandby(ctx context.Context, primary *Postgres, opts PostgresOptions) error {
	account, err := databaseAccount()
	if err != nil {
		return err
	}
	settings, err := p.prepare(account)
	if err != nil {
		return err
	}
	p.bin, p.instance.origin = primary.bin, primary.instance.origin
	slot := "standby_" + strings.ReplaceAll(uuid.NewString(), "-", "_")
	if err := primary.backUp(ctx, slot, p.dataDir); err != nil {
		return err
	}
	settings["primary_slot_name"] = slot
	settings["primary_conninfo"] = fmt.Sprintf("host=127.0.0.1 port=%s user=%s dbname=postgres", primary.base.Port(), primary.base.User.Username())
	maps.Copy(settings, opts.Settings)
	if err := errors.Join(configure(p.dataDir, settings), os.WriteFile(filepath.Join(p.dataDir, "standby.signal"), nil, 0o600)); err != nil {
		return err
	}
	if err := giveAway(p.dataDir, account); err != nil {
		return err
	}
	return p.launch(ctx, account)
}

// backUp copies the server's data into a folder, as a standby needs it, and makes a physical slot that keeps the WAL from
// there on. The functions were renamed in Postgres 15.
func (p *Postgres) backUp(ctx context.Context, slot, into string) (err error) {
	conn, err := pgx.Connect(ctx, p.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }() // ends a backup that was not stopped
	if _, err := conn.Exec(ctx, "SELECT pg_create_physical_replication_slot($1, true)", slot); err != nil {
		return fmt.Errorf("back up: make slot: %w", err)
	}
	var number int
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&number); err != nil {
		return fmt.Errorf("back up: ask for the version: %w", err)
	}
	start, stop := "SELECT pg_backup_start('standby', true)", "SELECT labelfile FROM pg_backup_stop(false)"
	if number < 15_00_00 {
		start, stop = "SELECT pg_start_backup('standby', true, false)", "SELECT labelfile FROM pg_stop_backup(false, false)"
	}
	if _, err := conn.Exec(ctx, start); err != nil {
		return fmt.Errorf("start backup: %w", err)
	}
	if err := copyData(p.dataDir, into); err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	var label string
	if err := conn.QueryRow(ctx, stop).Scan(&label); err != nil {
		return fmt.Errorf("stop backup: %w", err)
	}
	return os.WriteFile(filepath.Join(into, "backup_label"), []byte(label), 0o600)
}

// emptied are the folders whose files belong to the running server or to its slots, and not to a backup.
var emptied = []string{"pg_wal", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_serial", "pg_snapshots", "pg_stat_tmp", "pg_subtrans"}

// copyData copies the data folder of a running server. Files may go while it does.
func copyData(from, into string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(into, name)
		switch {
		case slices.Contains(emptied, filepath.Dir(name)) && entry.IsDir():
			return fs.SkipDir
		case entry.IsDir():
			return os.Mkdir(target, 0o700)
		case slices.Contains(emptied, filepath.Dir(name)), name == "postmaster.pid", name == "postmaster.opts":
			return nil
		}
		data, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		}
		return os.WriteFile(target, data, 0o600)
	})
}

// giveAway makes the database account the owner of a data folder that this process has filled.
func giveAway(data string, account *syscall.Credential) error {
	if account == nil {
		return nil
	}
	return filepath.WalkDir(data, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chown(path, int(account.Uid), int(account.Gid)))
	})
}
