// Package stack starts the servers that tests, the demo and the benchmarks need, and says which way it took.
//
// Postgres and Kafka each come from the first of these that is there:
//
//  1. servers that POMBO_TEST_POSTGRES (the DSN of a superuser) and POMBO_TEST_BROKERS (host:port, comma separated) name;
//  2. Docker, where an engine answers; POMBO_TEST_POSTGRES_IMAGE and POMBO_TEST_KAFKA_IMAGE choose the images;
//  3. processes of this machine: an installed Postgres, or one unpacked from a Maven artefact, of the major version
//     that POMBO_TEST_POSTGRES_VERSION names; Apache Kafka from Maven artefacts, where there are Java and Maven;
//  4. for Kafka only, a broker inside this process. POMBO_TEST_REAL=1 refuses it.
//
// Whatever was started listens on loopback, on free ports, keeps its data in a temporary folder, and ends with the process
// that started it, even if that is killed.
package stack

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"
)

// startTimeout is how long a server may take to answer.
const startTimeout = time.Minute

// pollInterval is how often a server is asked whether it is there.
const pollInterval = 50 * time.Millisecond

// errUnsupported says that a server that was not started as a process of this machine cannot be broken at will.
func errUnsupported(what, origin string) error {
	return fmt.Errorf("%s: %w by a server that is %s", what, errors.ErrUnsupported, origin)
}

// freePort returns a loopback port that was free a moment ago.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// cacheDir is a folder for what is fetched once and used by every later run.
func cacheDir(name string) (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	dir := filepath.Join(base, "pombo", name)
	return dir, os.MkdirAll(dir, 0o755) //nolint:gosec // the database user reads the binaries in it
}

// tell writes a line of progress, if anybody wants to know.
func tell(w io.Writer, format string, args ...any) {
	if w != nil {
		fmt.Fprintf(w, format+"\n", args...)
	}
}

// closer collects what has to be undone, and undoes it in reverse.
type closer struct{ steps []func() error }

func (c *closer) add(step func() error) { c.steps = append(c.steps, step) }

func (c *closer) close() error {
	var err error
	for i := len(c.steps) - 1; i >= 0; i-- {
		err = errors.Join(err, c.steps[i]())
	}
	c.steps = nil
	return err
}
