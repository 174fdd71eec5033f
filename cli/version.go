package cli

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	urfave "github.com/urfave/cli/v2"
)

// Version is set by the linker, which can only set a variable. Without it, the build information tells.
var Version string

func (a *app) version() *urfave.Command {
	return a.command("version", "prints version, commit and Go version", nil, func(_ context.Context, s *settings) error {
		if err := s.err(); err != nil {
			return err
		}
		_, err := fmt.Fprintln(a.stdout, "pombo", versionText())
		return err
	})
}

func versionText() string {
	version, commit := Version, "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		if version == "" {
			version = info.Main.Version
		}
		for _, setting := range info.Settings {
			switch {
			case setting.Key == "vcs.revision":
				commit = setting.Value
			case setting.Key == "vcs.modified" && setting.Value == "true":
				commit += " with changes"
			}
		}
	}
	return fmt.Sprintf("%s (commit %s, %s)", version, commit, runtime.Version())
}
