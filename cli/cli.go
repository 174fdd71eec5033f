// Package cli is the command line: one file a command, and the settings that they share. Flags,
// environment and file become Config structs here and nowhere else.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	urfave "github.com/urfave/cli/v2"

	"github.com/pombo-cdc/pombo/connector"
)

// The exit codes.
const (
	exitStopped  = 0 // as asked
	exitFailed   = 1
	exitUsage    = 2 // bad usage or configuration
	exitOperator = 3 // a person has to act
)

// Run runs the command that args name, args[0] being the program, until it ends or ctx is done,
// and returns the exit code. What went wrong is told once, on stderr.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	err := a.commandLine().RunContext(ctx, args)
	if err != nil {
		a.report(err)
	}
	return exitCode(err)
}

func exitCode(err error) int {
	var usage *usageError
	switch {
	case err == nil:
		return exitStopped
	case errors.As(err, &usage):
		return exitUsage
	case connector.NeedsOperator(err):
		return exitOperator
	default:
		return exitFailed
	}
}

// usageError is what is wrong with the command line, the environment and the file.
type usageError struct{ mistakes []error }

func (e *usageError) Error() string   { return errors.Join(e.mistakes...).Error() }
func (e *usageError) Unwrap() []error { return e.mistakes }

// app is one run of the program.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	log            *zerolog.Logger // of a command that runs on; nil: errors are told as plain text
}

// report tells an error, or each of those that it joins.
func (a *app) report(err error) {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		// One with several %w has the method too, and is one sentence.
		if parts := several.Unwrap(); err.Error() == errors.Join(parts...).Error() {
			for _, part := range parts {
				a.report(part)
			}
			return
		}
	}
	if a.log != nil {
		a.log.Error().Msg(err.Error())
		return
	}
	fmt.Fprintf(a.stderr, "pombo: %v\n", err)
}

func (a *app) commandLine() *urfave.App {
	return &urfave.App{
		Name:                  "pombo",
		Usage:                 "moves the committed rows of a Postgres outbox table to Kafka",
		Version:               versionText(),
		HideHelpCommand:       true,
		Commands:              a.commands(),
		Writer:                a.stdout,
		ErrWriter:             a.stderr,
		Action:                noCommand,
		OnUsageError:          badGlobalFlag,
		ExitErrHandler:        func(*urfave.Context, error) {}, // main exits
		CustomAppHelpTemplate: appHelp,
	}
}

func (a *app) commands() []*urfave.Command {
	return []*urfave.Command{a.setup(), a.run(), a.status(), a.tail(), a.parked(), a.teardown(), a.version()}
}

// appHelp is shorter than urfave's.
const appHelp = `{{.Name}} {{.Usage}}.

Usage: {{.Name}} COMMAND [FLAGS]

Commands:{{range .VisibleCommands}}
  {{printf "%-10s" .Name}}{{.Usage}}{{end}}

The flags of a command are listed by {{.Name}} COMMAND --help.
`

const commandHelp = `{{.HelpName}} {{.Usage}}.

Usage: {{.HelpName}} [FLAGS]
{{if .VisibleFlagCategories}}
A flag beats the environment variable in brackets, and that beats the key of the flag's name in the --config file.
{{range .VisibleFlagCategories}}
{{or .Name "Help"}}:{{range .Flags}}
  {{.}}{{end}}
{{end}}{{end}}`

// noCommand runs where the first argument is no command.
func noCommand(c *urfave.Context) error {
	if !c.Args().Present() {
		return urfave.ShowAppHelp(c)
	}
	return &usageError{[]error{fmt.Errorf("unknown command %s: `pombo --help` lists them", shown(c.Args().First()))}}
}

func badGlobalFlag(_ *urfave.Context, err error, _ bool) error {
	if name, ok := strings.CutPrefix(err.Error(), unknownFlag); ok {
		err = fmt.Errorf("unknown flag --%s before the command: flags stand after it, as in `pombo run --brokers …`", name)
	}
	return &usageError{[]error{err}}
}

// command returns a command whose flags are read by readSettings.
func (a *app) command(name, usage string, flags []urfave.Flag, action func(context.Context, *settings) error) *urfave.Command {
	return &urfave.Command{
		Name:            name,
		Usage:           usage,
		Flags:           flags,
		SkipFlagParsing: true, // urfave's stops at the first mistake
		HideHelpCommand: true,

		CustomHelpTemplate: commandHelp,
		Action: func(c *urfave.Context) error {
			s, err := readSettings(strings.TrimPrefix(c.Command.HelpName, "pombo "), flags, c.Args().Slice())
			if errors.Is(err, flag.ErrHelp) {
				return urfave.ShowSubcommandHelp(c)
			}
			return action(c.Context, s)
		},
	}
}

// cancelTime is how long Postgres gets to hear that an interrupted statement is not wanted any more.
const cancelTime = 2 * time.Second

// withPostgres runs do with a connection.
func withPostgres(ctx context.Context, cfg *pgx.ConnConfig, do func(*pgx.Conn) error) error {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	defer func() {
		// pgx cancels a statement in the background, and left alone it would go on in the server.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTime)
		defer cancel()
		_ = conn.Close(ctx)
		select {
		case <-conn.PgConn().CleanupDone():
		case <-ctx.Done():
		}
	}()
	return do(conn)
}
