package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"

	embedded "github.com/fergusstrange/embedded-postgres"
)

// release is a set of Postgres binaries.
type release struct {
	name  string // with the full version
	bin   string // folder
	major int
}

// artefacts are the releases that there is a Maven artefact of, by major version.
var artefacts = map[int]embedded.PostgresVersion{
	14: embedded.V14, 15: embedded.V15, 16: embedded.V16, 17: embedded.V17, 18: embedded.V18,
}

// defaultArtefact is the major version for machines without Postgres.
const defaultArtefact = 17

// findRelease returns an installed release, or else one from a Maven artefact. Major 0 is any.
func findRelease(ctx context.Context, major int, log io.Writer) (release, error) {
	if r, ok := installedRelease(ctx, major); ok {
		return r, nil
	}
	if major == 0 {
		major = defaultArtefact
	}
	version, ok := artefacts[major]
	if !ok {
		return release{}, fmt.Errorf("Postgres %d is neither installed nor to be had as a Maven artefact", major)
	}
	dir, err := cached(ctx, log, "postgres-"+string(version), func(dir string) error { return unpackArtefact(version, dir) })
	if err != nil {
		return release{}, err
	}
	r, ok := inspectRelease(ctx, filepath.Join(dir, "bin", "postgres"))
	if !ok {
		return release{}, fmt.Errorf("the binaries of Postgres %s in %s do not run on this machine", version, dir)
	}
	r.name += " from Maven"
	return r, nil
}

// installedRelease returns the newest release in PATH or where Debian puts it.
func installedRelease(ctx context.Context, major int) (newest release, ok bool) {
	candidates, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres") // the pattern is well-formed
	if path, err := exec.LookPath("postgres"); err == nil {
		candidates = append(candidates, path)
	}
	for _, path := range candidates {
		r, runs := inspectRelease(ctx, path)
		if runs && r.major > newest.major && (major == 0 || major == r.major) {
			newest, ok = r, true
		}
	}
	return newest, ok
}

var versionPattern = regexp.MustCompile(`\((PostgreSQL)\) ((\d+)\S*)`)

// inspectRelease asks a postgres binary what it is. PATH may have no more than a link to it, away from its siblings.
func inspectRelease(ctx context.Context, postgres string) (release, bool) {
	postgres, err := filepath.EvalSymlinks(postgres)
	if err != nil {
		return release{}, false
	}
	bin := filepath.Dir(postgres)
	if _, err := os.Stat(filepath.Join(bin, "initdb")); err != nil {
		return release{}, false
	}
	printed, err := output(ctx, nil, bin, postgres, "--version")
	match := versionPattern.FindStringSubmatch(printed)
	if err != nil || match == nil {
		return release{}, false
	}
	major, err := strconv.Atoi(match[3])
	return release{name: match[1] + " " + match[2], bin: bin, major: major}, err == nil
}

// unpackArtefact fetches the binaries of a version. The library does that as the first step of a start, which it is
// then kept from by a locale that no machine has.
func unpackArtefact(version embedded.PostgresVersion, dir string) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "pombo-fetch-")
	if err != nil {
		return err
	}
	started := embedded.NewDatabase(embedded.DefaultConfig().Version(version).Port(uint32(port)).Locale("none").
		BinariesPath(dir).CachePath(scratch).RuntimePath(filepath.Join(scratch, "run")).Logger(io.Discard)).Start()
	if _, err := os.Stat(filepath.Join(dir, "bin", "postgres")); err != nil {
		return errors.Join(started, os.RemoveAll(scratch))
	}
	return os.RemoveAll(scratch)
}
