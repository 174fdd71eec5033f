package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	urfave "github.com/urfave/cli/v2"
)

func TestFlagBeatsEnvironmentBeatsFile(t *testing.T) {
	isolate(t)
	file := writeConfig(t, "slot: from_file\npublication: from_file\ntable: from.file\nroute: [A=a, B=b]\ncreate-topics: yes\n")
	t.Setenv("POMBO_CONFIG", file)
	t.Setenv("POMBO_SLOT", "from_environment")
	t.Setenv("POMBO_PUBLICATION", "from_environment")
	cfg, err := configure(t, minimal("--slot", "x", "--slot", "from_flag")...)
	require.NoError(t, err)
	assert.Equal(t, "from_flag", cfg.Source.Slot, "and the last flag beats the ones before")
	assert.Equal(t, "from_environment", cfg.Source.Publication)
	assert.Equal(t, "from", cfg.Source.Schema)
	assert.True(t, cfg.Kafka.CreateTopics)

	cfg, err = configure(t, minimal("--create-topics=false")...)
	require.NoError(t, err)
	assert.False(t, cfg.Kafka.CreateTopics)
}

func TestEveryFlagHasAVariableAndAKey(t *testing.T) {
	isolate(t)
	var file strings.Builder
	for name, text := range map[string]string{
		"postgres": "postgres://app@db/shop", "brokers": "k1:1, k2:2", "slot": "s", "publication": "p", "table": "a.b",
		"topic": "events", "route": "A=a,B=b", "header": "h=c", "column": "payload=body", "compression": "zstd",
		"buffer": "2MiB", "create-topics": "true", "fencing": "off", "on-poison": "halt", "log-level": "debug", "log-format": "json",
	} {
		file.WriteString(name + ": " + text + "\n")
		t.Setenv(variable(name), text)
	}
	fromEnvironment, err := configure(t)
	require.NoError(t, err)
	isolate(t)
	fromFile, err := configure(t, "--config", writeConfig(t, file.String()))
	require.NoError(t, err)

	assert.Equal(t, []string{"k1:1", "k2:2"}, fromFile.Kafka.Brokers)
	assert.Equal(t, fromEnvironment.Kafka, fromFile.Kafka)
	assert.Equal(t, fromEnvironment.Layout, fromFile.Layout)
	assert.Equal(t, headers(fromEnvironment), headers(fromFile))
	assert.Equal(t, 2<<20, fromFile.Buffer)
	assert.False(t, fromFile.Park)
	fromEnvironment.Source.Postgres, fromFile.Source.Postgres = nil, nil // which have functions in them
	assert.Equal(t, fromEnvironment.Source, fromFile.Source)
}

func TestFileMayServeAllCommands(t *testing.T) {
	isolate(t)
	t.Setenv("POMBO_CONFIG", writeConfig(t, "# for all\npostgres: postgres://app@127.0.0.1:1/shop\nbrokers:\n- k1\n- k2\njson: true\nyes: true\n"))
	code, _, stderr := execute(t, "status")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, stderr, "connection refused", "nothing is wrong with the settings")
}

func TestEmptyFileHasNoSettings(t *testing.T) {
	isolate(t)
	_, err := configure(t, minimal("--config", writeConfig(t, "# slot: x\n"))...)
	require.NoError(t, err)
}

// Whatever is wrong, in whichever place, is told in one go, and nothing has been contacted by then.
func TestEveryMistakeIsListedAtOnce(t *testing.T) {
	isolate(t)
	file := writeConfig(t, "slot: a\nslot: b\ntopik: x\nheader: {a: b}\nbuffer: 3 parsecs\nlog-format: xml\nfencing:\npublication: [x, y]\n")
	t.Setenv("POMBO_COMPRESSION", "lzo")
	t.Setenv("POMBO_ON_POISON", "skip")
	t.Setenv("POMBO_CREATE_TOPICS", "perhaps")
	t.Setenv("POMBO_ROUTE", "")
	code, stdout, stderr := execute(t, "run", "--config", file,
		"--tabel", "t", "--verbose", "--column", "id", "--column", "key=k,payload=a,payload=b",
		"stray", "--log-level", "loud", "--topic", "{{.Nope}}", "--create-table", "--postgres")
	assert.Equal(t, exitUsage, code)
	assert.Empty(t, stdout)
	assert.Equal(t, []string{
		"pombo: unknown flag --tabel: did you mean --table? `pombo run --help` lists all",
		"pombo: unknown flag --verbose: `pombo run --help` lists all",
		"pombo: unexpected argument \"stray\": `pombo run` takes only flags",
		"pombo: --postgres lacks its value",
		"pombo: slot (line 2 of pombo.yaml) is given twice",
		"pombo: unknown key topik (line 3 of pombo.yaml): keys are called as the flags that `pombo run --help` lists",
		"pombo: header (line 4 of pombo.yaml) has to be a value or a list of them",
		"pombo: publication (line 8 of pombo.yaml) has 2 values, and takes one",
		"pombo: POMBO_ROUTE is empty: give it a value, or leave it out",
		"pombo: fencing (line 7 of pombo.yaml) is empty: give it a value, or leave it out",
		`pombo: --log-level: "loud" is none of trace, debug, info, warn and error`,
		`pombo: log-format (line 6 of pombo.yaml): "xml" is none of auto, console and json`,
		`pombo: --column: "id" is not of the form role=column`,
		`pombo: --column: "payload" is given twice`,
		`pombo: --column: "key" is no role: there are id, aggregate_type, aggregate_id, event_type, payload`,
		`pombo: topic template "{{.Nope}}": an event has no field .Nope, only .ID, .AggregateType, .AggregateID and .EventType`,
		"pombo: --postgres is missing: give the database as a URL, or set PGHOST, PGDATABASE and PGUSER",
		"pombo: --brokers is missing: name some brokers as host:port",
		`pombo: POMBO_CREATE_TOPICS: "perhaps" is neither on nor off`,
		`pombo: POMBO_COMPRESSION: "lzo" is none of none, gzip, snappy, lz4 and zstd`,
		`pombo: buffer (line 5 of pombo.yaml): "3 parsecs" is not a size such as 16MiB`,
		`pombo: POMBO_ON_POISON: "skip" is neither park nor halt`,
		"pombo: --create-table: only goes with --setup",
	}, strings.Split(strings.TrimSpace(stderr), "\n"))
}

func TestFileThatCannotBeRead(t *testing.T) {
	isolate(t)
	for name, test := range map[string]struct{ path, want string }{
		"missing":      {"/nowhere/pombo.yaml", "--config: read /nowhere/pombo.yaml: no such file or directory"},
		"not YAML":     {writeConfig(t, "slot: [a\n"), "line 1: did not find expected ',' or ']'"},
		"not settings": {writeConfig(t, "just text"), "pombo.yaml has no settings: write a line `flag: value` for each"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := configure(t, minimal("--config", test.path)...)
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestHelp(t *testing.T) {
	isolate(t)
	for _, args := range [][]string{{}, {"--help"}, {"-h"}} {
		code, stdout, _ := execute(t, args...)
		assert.Equal(t, exitStopped, code)
		for _, c := range new(app).commands() {
			assert.Contains(t, stdout, "\n  "+c.Name+" ")
		}
	}
	for _, c := range new(app).commands() {
		code, stdout, stderr := execute(t, c.Name, "--help")
		assert.Equal(t, exitStopped, code, stderr)
		assertFlags(t, stdout, c.Flags)
		for _, sub := range c.Subcommands {
			assert.Contains(t, stdout, "\n  "+sub.Name+" ")
			code, stdout, stderr := execute(t, c.Name, sub.Name, "--help")
			assert.Equal(t, exitStopped, code, stderr)
			assert.Contains(t, stdout, "Usage: pombo "+c.Name+" "+sub.Name+" [FLAGS]")
			assertFlags(t, stdout, sub.Flags)
		}
	}
}

// assertFlags asserts that a help has flags and their variables.
func assertFlags(t *testing.T, help string, flags []urfave.Flag) {
	t.Helper()
	for _, f := range flags {
		assert.Contains(t, help, "--"+f.Names()[0])
		assert.Contains(t, help, "[$"+variable(f.Names()[0])+"]")
	}
}

func TestUsageMistakes(t *testing.T) {
	isolate(t)
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"unknown command":         {[]string{"rum"}, "unknown command \"rum\": `pombo --help` lists them"},
		"flag before the command": {[]string{"--slot", "x", "run"}, "unknown flag --slot before the command: flags stand after it"},
		"command after flags":     {minimal("--setup", "setup"), "unknown flag --postgres before the command"},
		"bad syntax":              {[]string{"status", "---slot=x"}, "argument (not shown, as there may be a password in it) is not a flag"},
		"version with arguments":  {[]string{"version", "now"}, "unexpected argument \"now\""},
		"teardown unasked":        {[]string{"teardown", "--postgres", "postgres://db"}, "there is no terminal: give --yes"},
		"no command of parked":    {[]string{"parked", "lost"}, "unknown command \"lost\": `pombo parked --help` lists them"},
		"flag before list":        {[]string{"parked", "--json", "list"}, "flags stand after it, as in `pombo parked list --json`"},
		"no flag of list":         {[]string{"parked", "list", "--jsn"}, "unknown flag --jsn: did you mean --json? `pombo parked list --help` lists all"},
		"discard unasked":         {[]string{"parked", "discard", "--id", "1", "--postgres", "postgres://db"}, "there is no terminal: give --yes"},
		"discard of nothing":      {[]string{"parked", "discard", "--yes"}, "--id is missing: name an event that `pombo parked list` shows"},
		"show of nothing":         {[]string{"parked", "show"}, "--id is missing: name an event that `pombo parked list` shows"},
		"two names":               {[]string{"parked", "show", "--id", "1", "--seq", "1"}, "--id and --seq both name an event: give one of them"},
		"bad number":              {[]string{"parked", "retry", "--seq", "-1"}, `--seq: "-1" is no number of a parked event`},
		"retry without brokers":   {[]string{"parked", "retry"}, "--brokers is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := execute(t, test.args...)
			assert.Equal(t, exitUsage, code)
			assert.Contains(t, stderr, test.want)
		})
	}
}

func TestVersion(t *testing.T) {
	isolate(t)
	code, stdout, _ := execute(t, "version")
	assert.Equal(t, exitStopped, code)
	assert.Regexp(t, `^pombo \S+ \(commit \S+( with changes)?, go1\.\d+.*\)\n$`, stdout)
	_, flag, _ := execute(t, "--version")
	assert.Contains(t, flag, versionText())
}
