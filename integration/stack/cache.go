package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// cached returns the folder of something that is fetched once and used by every later run. fetch fills a folder that
// takes its place only when it is whole; two processes do not fetch the same thing at once.
func cached(ctx context.Context, log io.Writer, name string, fetch func(dir string) error) (string, error) {
	base, err := cacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(base, name)
	unlock, err := lock(ctx, dir+".lock")
	if err != nil {
		return "", fmt.Errorf("lock cache: %w", err)
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	tell(log, "fetching %s, once, into %s", name, base)
	partial := dir + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return "", fmt.Errorf("clear what an earlier run left: %w", err)
	}
	if err := os.Mkdir(partial, 0o755); err != nil { //nolint:gosec // the account that runs Postgres reads it
		return "", err
	}
	if err := fetch(partial); err != nil {
		return "", fmt.Errorf("fetch %s: %w", name, err)
	}
	return dir, os.Rename(partial, dir)
}

// cacheDir is the user's, but root's is the machine's: the account that runs Postgres cannot look into root's home.
func cacheDir() (string, error) {
	base := "/var/cache"
	if os.Geteuid() != 0 {
		var err error
		if base, err = os.UserCacheDir(); err != nil {
			return "", fmt.Errorf("find cache folder: %w", err)
		}
	}
	base = filepath.Join(base, "pombo")
	return base, os.MkdirAll(base, 0o755) //nolint:gosec // as above
}

// lock waits until no other process has the lock of that name.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	locked := poll(ctx, nil, func() bool {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		return !errors.Is(err, syscall.EWOULDBLOCK)
	})
	if !locked {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil // the kernel unlocks what is closed
}
