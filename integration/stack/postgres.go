package stack

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// PostgresOptions says what a test needs of Postgres.
type PostgresOptions struct {
	Settings map[string]string // of postgresql.conf, beside what logical replication needs
	Log      io.Writer         // progress; nil for none
}

// Postgres is a server with wal_level=logical.
type Postgres struct {
	base    *url.URL
	origin  string
	bin     string
	proc    *process
	restart func(context.Context) (*process, error)
	logFile string
	clean   closer
}

// StopMode is how Postgres is asked to stop.
type StopMode syscall.Signal

// The modes of pg_ctl, and the one of a crash.
const (
	Smart     = StopMode(syscall.SIGTERM) // when all clients have gone
	Fast      = StopMode(syscall.SIGINT)  // clients are cut off
	Immediate = StopMode(syscall.SIGQUIT) // recovers at the next start
)

// StartPostgres starts or adopts a server.
func StartPostgres(ctx context.Context, opts PostgresOptions) (*Postgres, error) {
	p, err := startPostgres(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("start Postgres: %w", err)
	}
	tell(opts.Log, "Postgres: %s", p.origin)
	return p, nil
}

func startPostgres(ctx context.Context, opts PostgresOptions) (*Postgres, error) {
	if dsn := os.Getenv("POMBO_TEST_POSTGRES"); dsn != "" {
		base, err := url.Parse(dsn)
		if err != nil || base.Scheme == "" {
			return nil, fmt.Errorf("POMBO_TEST_POSTGRES has to be a URL")
		}
		return &Postgres{base: base, origin: "given by POMBO_TEST_POSTGRES"}, nil
	}
	if docker, ok := engine(); ok {
		return dockerPostgres(ctx, docker, opts)
	}
	return nativePostgres(ctx, opts)
}

// DSN is the URL of a database for a superuser.
func (p *Postgres) DSN(database string) string {
	u := *p.base
	u.Path = "/" + database
	return u.String()
}

// Origin says where the server came from.
func (p *Postgres) Origin() string { return p.origin }

// BinDir is the folder of the server's own tools, or empty if it is not known.
func (p *Postgres) BinDir() string { return p.bin }

// LogFile is the server's log, or empty if it is not at hand.
func (p *Postgres) LogFile() string { return p.logFile }

// CreateDatabase creates an empty database and returns its DSN.
func (p *Postgres) CreateDatabase(ctx context.Context, name string) (string, error) {
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

// Stop stops the server and waits for its end.
func (p *Postgres) Stop(ctx context.Context, mode StopMode) error {
	if p.proc == nil {
		return errUnsupported("stop Postgres", p.origin)
	}
	return p.proc.end(ctx, syscall.Signal(mode))
}

// Start starts a stopped server again, on the same port and with the same data.
func (p *Postgres) Start(ctx context.Context) (err error) {
	if p.proc == nil {
		return errUnsupported("start Postgres", p.origin)
	}
	if p.proc, err = p.restart(ctx); err != nil {
		return fmt.Errorf("start Postgres: %w", err)
	}
	return nil
}

// Close ends the server, if it was started here, and removes its data.
func (p *Postgres) Close() error { return p.clean.close() }

func (p *Postgres) ready(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.DSN("postgres"))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// settings are those of postgresql.conf for every way to start a server.
func settings(opts PostgresOptions) map[string]string {
	all := map[string]string{
		"wal_level":             "logical",
		"max_wal_senders":       "32",
		"max_replication_slots": "32",
		"max_connections":       "200",
		"fsync":                 "off", // the machine does not crash in a test, only processes do
	}
	for name, value := range opts.Settings {
		all[name] = value
	}
	return all
}

// nativePostgres runs the server's own binaries.
func nativePostgres(ctx context.Context, opts PostgresOptions) (*Postgres, error) {
	bin, err := postgresBinaries(opts.Log)
	if err != nil {
		return nil, err
	}
	user, err := databaseUser()
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pombo-pg-")
	if err != nil {
		return nil, err
	}
	p := &Postgres{
		base:    &url.URL{Scheme: "postgres", User: url.User("postgres"), Host: fmt.Sprintf("127.0.0.1:%d", port), RawQuery: "sslmode=disable"},
		bin:     bin,
		logFile: filepath.Join(dir, "log"),
	}
	p.clean.add(func() error { return os.RemoveAll(dir) })
	data := filepath.Join(dir, "data")
	if err := initdb(bin, dir, data, user); err != nil {
		return nil, joinClose(err, &p.clean)
	}
	args := []string{"-D", data}
	for name, value := range settings(opts) {
		args = append(args, "-c", name+"="+value)
	}
	args = append(args, "-c", "listen_addresses=127.0.0.1", "-c", fmt.Sprintf("port=%d", port), "-c", "unix_socket_directories="+dir)
	p.restart = func(ctx context.Context) (*process, error) {
		proc, err := start(spec{
			path: filepath.Join(bin, "postgres"), args: args, logFile: p.logFile,
			user: user, onDeath: syscall.SIGQUIT,
		})
		if err != nil {
			return nil, err
		}
		return proc, proc.await(ctx, p.ready)
	}
	p.clean.add(func() error { return p.proc.quit(syscall.SIGQUIT) })
	if p.proc, err = p.restart(ctx); err != nil {
		return nil, joinClose(err, &p.clean)
	}
	p.origin = "a process of this machine, " + strings.TrimSpace(versionOf(filepath.Join(bin, "postgres")))
	return p, nil
}

// SocketDSN is DSN over the server's Unix socket, or empty where it has none that can be reached.
func (p *Postgres) SocketDSN(database string) string {
	if p.logFile == "" {
		return ""
	}
	return fmt.Sprintf("host=%s port=%s user=postgres dbname=%s", filepath.Dir(p.logFile), p.base.Port(), database)
}
