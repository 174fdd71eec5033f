package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// PostgresOptions says what is needed of Postgres.
type PostgresOptions struct {
	// Settings are those of postgresql.conf, beside what logical replication needs. A server that was not started here
	// keeps its own. {"fsync": "off"} saves time where nothing is measured: only a crash of the machine needs it.
	Settings map[string]string
	// Version is the major version. 0 takes that of POMBO_TEST_POSTGRES_VERSION, or the newest there is.
	Version int
	// Log gets lines of progress. It may be nil.
	Log io.Writer
}

// Postgres is a server with wal_level=logical and a superuser. Start, Stop and Close are not safe for concurrent use.
type Postgres struct {
	instance instance
	base     *url.URL
	bin      string
	logFile  string
	socket   string // folder
	dataDir  string // of a native server
}

// StopMode is how Postgres is asked to stop: the modes of pg_ctl, and Kill.
type StopMode syscall.Signal

const (
	Smart     = StopMode(syscall.SIGTERM) // waits until all clients have gone
	Fast      = StopMode(syscall.SIGINT)  // cuts clients off, but has sent all WAL to those that replicate
	Immediate = StopMode(syscall.SIGQUIT) // as a crash: recovers at the next start
	Kill      = StopMode(syscall.SIGKILL) // the postmaster has no chance; the backends notice and go
)

// StartPostgres starts or adopts a server.
func StartPostgres(ctx context.Context, opts PostgresOptions) (*Postgres, error) {
	p := newPostgres("Postgres")
	if err := p.open(ctx, opts); err != nil {
		return nil, fmt.Errorf("start Postgres: %w", errors.Join(err, p.Close()))
	}
	tell(opts.Log, "Postgres: %s", p.Origin())
	return p, nil
}

func newPostgres(name string) *Postgres {
	p := &Postgres{instance: instance{name: name}}
	p.instance.ready = p.ready
	return p
}

func (p *Postgres) open(ctx context.Context, opts PostgresOptions) error {
	if opts.Version == 0 {
		var err error
		if opts.Version, err = versionWanted(); err != nil {
			return err
		}
	}
	if dsn := os.Getenv("POMBO_TEST_POSTGRES"); dsn != "" {
		return p.adopt(ctx, dsn, opts.Version)
	}
	if pool, ok := dockerEngine(ctx); ok {
		return p.runContainer(ctx, pool, opts)
	}
	return p.runNative(ctx, opts)
}

func versionWanted() (int, error) {
	s := os.Getenv("POMBO_TEST_POSTGRES_VERSION")
	if s == "" {
		return 0, nil
	}
	major, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("POMBO_TEST_POSTGRES_VERSION has to be a major version, not %q", s)
	}
	return major, nil
}

// adopt takes a server that somebody else started, if it fits.
func (p *Postgres) adopt(ctx context.Context, dsn string, version int) error {
	base, err := url.Parse(dsn)
	if err != nil || base.Host == "" {
		return errors.New("POMBO_TEST_POSTGRES has to be a URL with a host") // the DSN itself may have a password
	}
	p.base, p.instance.origin = base, "given by POMBO_TEST_POSTGRES"
	conn, err := pgx.Connect(ctx, p.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("connect to POMBO_TEST_POSTGRES: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var level string
	var number int
	err = conn.QueryRow(ctx, "SELECT current_setting('wal_level'), current_setting('server_version_num')::int / 10000").Scan(&level, &number)
	switch {
	case err != nil:
		return fmt.Errorf("ask POMBO_TEST_POSTGRES for its settings: %w", err)
	case level != "logical":
		return fmt.Errorf("POMBO_TEST_POSTGRES has wal_level=%s, not logical", level)
	case version != 0 && version != number:
		return fmt.Errorf("POMBO_TEST_POSTGRES is a Postgres %d, not %d", number, version)
	}
	return nil
}

// ready asks for a session, which a server that still starts or recovers refuses.
func (p *Postgres) ready(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.DSN("postgres"))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// postgresSettings are those of a server that is started here, whatever it runs as.
func postgresSettings(more map[string]string) map[string]string {
	all := map[string]string{
		"wal_level":             "logical",
		"max_wal_senders":       "32",
		"max_replication_slots": "32",
		"max_connections":       "200",
	}
	maps.Copy(all, more)
	return all
}

// DSN is the superuser's URL of a database, over TCP.
func (p *Postgres) DSN(database string) string {
	u := *p.base
	u.Path = "/" + database
	return u.String()
}

// SocketDSN is DSN over the server's Unix socket, or empty where that cannot be reached.
func (p *Postgres) SocketDSN(database string) string {
	if p.socket == "" {
		return ""
	}
	query := url.Values{"host": {p.socket}, "port": {p.base.Port()}, "user": {p.base.User.Username()}}
	u := url.URL{Scheme: "postgres", Path: "/" + database, RawQuery: query.Encode()}
	return u.String()
}

// Addr is the server's host:port.
func (p *Postgres) Addr() string { return p.base.Host }

// Origin says where the server came from.
func (p *Postgres) Origin() string { return p.instance.origin }

// BinDir is the folder of the server's own tools (pg_recvlogical, pg_basebackup, ...), or empty if it is not known.
func (p *Postgres) BinDir() string { return p.bin }

// LogFile is the server's log, or empty if that is not at hand.
func (p *Postgres) LogFile() string { return p.logFile }

// CreateDatabase creates an empty database and returns its DSN.
func (p *Postgres) CreateDatabase(ctx context.Context, name string) (dsn string, err error) {
	conn, err := pgx.Connect(ctx, p.DSN("postgres"))
	if err != nil {
		return "", fmt.Errorf("create database: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
		return "", fmt.Errorf("create database: %w", err)
	}
	return p.DSN(name), nil
}

// Stop stops the server and waits for its end. A server that has ended already is no error.
func (p *Postgres) Stop(ctx context.Context, mode StopMode) error {
	return p.instance.stop(ctx, syscall.Signal(mode))
}

// Start starts a stopped server again, on the same port and with the same data, and waits until it answers.
func (p *Postgres) Start(ctx context.Context) error { return p.instance.start(ctx) }

// Close ends the server, if it was started here, and removes its data.
func (p *Postgres) Close() error { return p.instance.close() }
