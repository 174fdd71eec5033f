// Package migrations owns the SQL of the tables that Pombo makes: the outbox and processed_event
// in a schema of the user's, once and never changed after that, and the state in schema pombo,
// in numbered steps. Which of them have been taken is recorded in pombo.migration.
package migrations

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"fmt"
	"io/fs"
	"strings"
	"text/template"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
)

// versionTable stands inside schema pombo, which has to exist.
const versionTable = "pombo.migration"

//go:embed *.sql pombo/*.sql
var files embed.FS

// Columns are those of the table that Outbox makes.
func Columns() []string {
	return []string{"id", "aggregate_type", "aggregate_id", "event_type", "payload", "created_at", "published_at"}
}

// Outbox returns the SQL that makes the outbox table and its partial index where they are missing.
func Outbox(schema, table string) (string, error) {
	return render("outbox.sql", map[string]string{
		"Table": pgx.Identifier{schema, table}.Sanitize(),
		"Index": pgx.Identifier{"idx_" + strings.TrimSuffix(table, "_event") + "_unpublished"}.Sanitize(),
	})
}

// ProcessedEvent returns the SQL that makes the consumer's table where it is missing.
func ProcessedEvent(schema string) (string, error) {
	return render("processed_event.sql", map[string]string{
		"Processed": pgx.Identifier{schema, "processed_event"}.Sanitize(),
	})
}

func render(file string, names map[string]string) (string, error) {
	t, err := template.ParseFS(files, file)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	err = t.Execute(&text, names)
	return text.String(), err
}

// State migrates schema pombo of one database.
type State struct {
	db       *sql.DB
	provider *goose.Provider
	store    database.Store
}

// NewState returns the State of db, which stays the caller's to close.
func NewState(db *sql.DB) (*State, error) {
	steps, err := fs.Sub(files, "pombo")
	if err != nil {
		return nil, err
	}
	store, err := database.NewStore(database.DialectPostgres, versionTable)
	if err != nil {
		return nil, err
	}
	provider, err := goose.NewProvider(goose.DialectCustom, db, steps, goose.WithStore(store))
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	return &State{db: db, provider: provider, store: store}, nil
}

// Up takes the steps that are missing.
func (s *State) Up(ctx context.Context) error {
	_, err := s.provider.Up(ctx)
	return err
}

// Pending returns, as one script, the SQL that Up would run, and nothing when the schema is up to date. It changes nothing.
func (s *State) Pending(ctx context.Context) (string, error) {
	applied, err := s.version(ctx)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", versionTable, err)
	}
	var r recorder
	if applied < 0 {
		if err := s.store.CreateVersionTable(ctx, &r); err != nil {
			return "", err
		}
		if err := s.store.Insert(ctx, &r, database.InsertRequest{Version: 0}); err != nil {
			return "", err
		}
	}
	for _, source := range s.provider.ListSources() {
		if source.Version <= applied {
			continue
		}
		text, err := fs.ReadFile(files, "pombo/"+source.Path)
		if err != nil {
			return "", err
		}
		r.script.Write(text)
		if err := s.store.Insert(ctx, &r, database.InsertRequest{Version: source.Version}); err != nil {
			return "", err
		}
	}
	return r.script.String(), nil
}

// version is that of the last step taken, and negative where nothing has been recorded.
func (s *State) version(ctx context.Context) (int64, error) {
	exists, err := s.store.(database.StoreExtender).TableExists(ctx, s.db)
	if err != nil || !exists {
		return -1, err
	}
	return s.store.GetLatestVersion(ctx, s.db)
}

// recorder takes down the statements that a goose store runs to change something, with their arguments
// in place. Of the connection that it stands for, it has nothing else.
type recorder struct {
	database.DBTxConn
	script strings.Builder
}

// ExecContext implements database.DBTxConn.
func (r *recorder) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	for i, arg := range args {
		query = strings.ReplaceAll(query, fmt.Sprintf("$%d", i+1), fmt.Sprint(arg))
	}
	r.script.WriteString(query + ";\n")
	return driver.ResultNoRows, nil
}
