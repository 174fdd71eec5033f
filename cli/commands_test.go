package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/replication"
)

func TestExitCodes(t *testing.T) {
	action := &replication.ActionError{Problem: "slot gone", Cure: "make one"}
	for want, err := range map[int]error{
		exitStopped:  nil,
		exitFailed:   errors.New("connection refused"),
		exitUsage:    &usageError{[]error{errors.New("bad flag")}},
		exitOperator: fmt.Errorf("check: %w", errors.Join(action, action)),
	} {
		assert.Equal(t, want, exitCode(err), "%v", err)
	}
}

// The life of a slot, as an operator sees it.
func TestSetupStatusTeardown(t *testing.T) {
	useDatabase(t, "pombo_cli")

	code, _, stderr := execute(t, "status")
	assert.Equal(t, exitOperator, code)
	assert.Equal(t, "pombo: slot \"pombo_cli\" does not exist: run `pombo setup`\n", stderr)

	code, _, stderr = execute(t, "run", "--brokers", "127.0.0.1:1", "--log-format", "json")
	assert.Equal(t, exitOperator, code)
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	require.Len(t, lines, 3, "table, publication, slot: %s", stderr)
	assert.Contains(t, lines[0], `"level":"error"`)
	assert.Contains(t, lines[2], "run `pombo setup`")

	code, stdout, stderr := execute(t, "setup", "--create-table", "--dry-run")
	assert.Equal(t, exitStopped, code, stderr)
	assert.Contains(t, stdout, "SELECT pg_create_logical_replication_slot('pombo_cli', 'pgoutput');\n")

	code, stdout, stderr = execute(t, "setup", "--create-table")
	assert.Equal(t, exitStopped, code, stderr)
	assert.Contains(t, stdout, "created slot pombo_cli\n")

	code, stdout, stderr = execute(t, "status")
	assert.Equal(t, exitStopped, code, stderr)
	assert.Contains(t, stdout, "slot          pombo_cli in database pombo_cli\nreader        not active: start `pombo run`, or if it runs, see in its log what keeps it from the slot or from Kafka\n")

	code, stdout, stderr = execute(t, "status", "--json")
	assert.Equal(t, exitStopped, code, stderr)
	var status map[string]any
	require.NoError(t, json.Unmarshal([]byte(stdout), &status))
	assert.Equal(t, "pombo_cli", status["slot"])

	code, stdout, stderr = execute(t, "teardown", "--yes")
	assert.Equal(t, exitStopped, code, stderr)
	assert.Contains(t, stdout, "dropped slot pombo_cli\ndropped publication pombo\n")
}

func TestStatusForPeople(t *testing.T) {
	limit, parked := int64(5<<30), int64(1234)
	var out strings.Builder
	require.NoError(t, printStatus(&out, replication.Status{
		Slot: "pombo", Database: "shop", Active: true, ActivePID: 4711, WALStatus: "extended", InvalidationReason: "none",
		ConfirmedLSN: 0x16B3748, RestartLSN: 0x16B3710, LagBytes: 1000, RetainedBytes: 1234567, SafeWALBytes: &limit, ParkedEvents: &parked,
	}))
	assert.Equal(t, `slot          pombo in database shop
reader        active (pid 4711)
lag           1,000 bytes
confirmed     0/16B3748
retained WAL  1.2 MiB (1,234,567 bytes) from 0/16B3710
safe WAL      5.0 GiB (5,368,709,120 bytes) until the slot is lost
WAL status    extended (none)
parked        1,234 events: `+"`pombo parked list`"+` says why
`, out.String())
}
