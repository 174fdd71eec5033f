package stack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// runNative runs the server's own binaries on a new data folder.
func (p *Postgres) runNative(ctx context.Context, opts PostgresOptions) error {
	release, err := findRelease(ctx, opts.Version, opts.Log)
	if err != nil {
		return err
	}
	account, err := databaseAccount()
	if err != nil {
		return err
	}
	reachable, err := p.prepare(account)
	if err != nil {
		return err
	}
	p.bin, p.instance.origin = release.bin, "native "+release.name
	if err := initdb(ctx, release.bin, p.dataDir, account); err != nil {
		return err
	}
	settings := postgresSettings(opts.Settings)
	maps.Copy(settings, reachable)
	if err := configure(p.dataDir, settings); err != nil {
		return err
	}
	return p.launch(ctx, account)
}

// prepare makes a folder for a native server, chooses its port, and returns the settings that make it reachable there.
func (p *Postgres) prepare(account *syscall.Credential) (settings map[string]string, err error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pombo-pg-")
	if err != nil {
		return nil, fmt.Errorf("make data folder: %w", err)
	}
	p.instance.atClose(func() error { return os.RemoveAll(dir) })
	if account != nil {
		if err := os.Chown(dir, int(account.Uid), int(account.Gid)); err != nil {
			return nil, fmt.Errorf("give data folder to the database account: %w", err)
		}
	}
	p.base = &url.URL{Scheme: "postgres", User: url.User("postgres"), Host: loopback(port), RawQuery: "sslmode=disable"}
	p.dataDir, p.logFile, p.socket = filepath.Join(dir, "data"), filepath.Join(dir, "postgres.log"), dir
	return map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(port),
		"unix_socket_directories": dir,
	}, nil
}

// launch starts the server on its data folder.
func (p *Postgres) launch(ctx context.Context, account *syscall.Credential) error {
	proc, err := startProcess(spec{
		path: filepath.Join(p.bin, "postgres"), args: []string{"-D", p.dataDir}, dir: p.socket, logFile: p.logFile,
		account: account, onDeath: syscall.SIGQUIT,
	})
	if err != nil {
		return err
	}
	p.instance.server = proc
	// Nobody needs the data any more, but SIGKILL would leave shared memory behind.
	p.instance.atClose(func() error { return p.instance.quit(syscall.SIGQUIT) })
	return p.instance.await(ctx)
}

// databaseAccount is who runs the server: nil for the user of this process, but Postgres refuses root.
func databaseAccount() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, fmt.Errorf("look up account %s: %w", name, err)
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("Postgres refuses root, and there is no account postgres or nobody to run it as")
}

// initdb makes a data folder with a superuser postgres, whom anybody on this machine can be.
func initdb(ctx context.Context, bin, data string, account *syscall.Credential) error {
	_, err := output(ctx, account, filepath.Dir(data), filepath.Join(bin, "initdb"),
		"-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	return err
}

// configure appends settings to postgresql.conf, where ALTER SYSTEM still wins over them.
func configure(data string, settings map[string]string) (err error) {
	f, err := os.OpenFile(filepath.Join(data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("configure: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if _, err := fmt.Fprintf(f, "%s = '%s'\n", name, confQuoter.Replace(settings[name])); err != nil {
			return fmt.Errorf("configure: %w", err)
		}
	}
	return nil
}

var confQuoter = strings.NewReplacer(`\`, `\\`, `'`, `''`)
