package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"

	embedded "github.com/fergusstrange/embedded-postgres"
)

// unpackable are the versions that there is a Maven artefact of, by major version.
var unpackable = map[int]embedded.PostgresVersion{
	14: embedded.V14, 15: embedded.V15, 16: embedded.V16, 17: embedded.V17, 18: embedded.V18,
}

// postgresBinaries returns the folder of an installed server, or else of an unpacked one.
func postgresBinaries(log io.Writer) (string, error) {
	wanted := 0
	if s := os.Getenv("POMBO_TEST_POSTGRES_VERSION"); s != "" {
		major, err := strconv.Atoi(s)
		if err != nil {
			return "", fmt.Errorf("POMBO_TEST_POSTGRES_VERSION has to be a major version, not %q", s)
		}
		wanted = major
	}
	if bin, ok := installed(wanted); ok {
		return bin, nil
	}
	if wanted == 0 {
		wanted = 17
	}
	version, ok := unpackable[wanted]
	if !ok {
		return "", fmt.Errorf("Postgres %d is neither installed nor to be had as a Maven artefact", wanted) //nolint:staticcheck // a proper name
	}
	return unpack(version, log)
}

// installed returns the newest server in PATH or where Debian puts it, of a major version unless that is zero.
func installed(wanted int) (bin string, ok bool) {
	candidates, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if path, err := exec.LookPath("postgres"); err == nil {
		candidates = append(candidates, path)
	}
	newest := 0
	for _, path := range candidates {
		major := majorOf(path)
		if major > newest && (wanted == 0 || major == wanted) {
			newest, bin = major, filepath.Dir(path)
		}
	}
	return bin, newest > 0
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

func versionOf(postgres string) string {
	out, _ := exec.Command(postgres, "--version").Output() // no output: no version
	return string(out)
}

func majorOf(postgres string) int {
	match := versionPattern.FindStringSubmatch(versionOf(postgres))
	if match == nil {
		return 0
	}
	major, _ := strconv.Atoi(match[1]) // digits
	return major
}

// unpack fetches the binaries of a version, once.
func unpack(version embedded.PostgresVersion, log io.Writer) (string, error) {
	dir, err := cacheDir("postgres-" + string(version))
	if err != nil {
		return "", fmt.Errorf("unpack Postgres: %w", err)
	}
	postgres := filepath.Join(dir, "bin", "postgres")
	if _, err := os.Stat(postgres); err == nil {
		return filepath.Dir(postgres), nil
	}
	tell(log, "fetching Postgres %s, once", version)
	port, err := freePort()
	if err != nil {
		return "", err
	}
	scratch, err := os.MkdirTemp("", "pombo-unpack-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	// The library unpacks as the first step of a start. The start itself fails for root, and is not wanted anyway.
	server := embedded.NewDatabase(embedded.DefaultConfig().Version(version).Port(uint32(port)).
		BinariesPath(dir).CachePath(scratch).RuntimePath(filepath.Join(scratch, "run")).Logger(io.Discard))
	started := server.Start()
	if started == nil {
		_ = server.Stop()
	}
	if _, err := os.Stat(postgres); err != nil {
		return "", fmt.Errorf("unpack Postgres %s: %w", version, errors.Join(started, err))
	}
	return filepath.Dir(postgres), nil
}

// databaseUser is who runs the server: initdb refuses root.
func databaseUser() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("look up user %s: %w", name, err)
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("initdb refuses root, and there is no user postgres or nobody to run it as")
}

func initdb(bin, dir, data string, user *syscall.Credential) error {
	if user != nil {
		if err := os.Chown(dir, int(user.Uid), int(user.Gid)); err != nil {
			return fmt.Errorf("give data folder to the database user: %w", err)
		}
	}
	cmd := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

// joinClose closes what has been started before an error.
func joinClose(err error, c *closer) error { return errors.Join(err, c.close()) }

// run runs a command to its end; its error has the output.
func run(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, args[0], err, out[max(0, len(out)-2000):])
	}
	return nil
}

// sortedKeys makes files that are written from maps the same each time.
func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
