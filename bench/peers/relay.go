package main

import (
	"context"
	"os"
	"os/exec"
	"strings"

	"github.com/pombo-cdc/pombo/bench/rig"
)

// relayBinary is the polling relay, as `make bench-peers` builds it.
const relayBinary = "bin/relay"

// relaySettings are those of bench/relay where it is not told otherwise.
const relaySettings = "Relay: each second a transaction of 100 events, SELECT … FOR UPDATE SKIP LOCKED; each is sent by itself with acks=all and idempotence, and then marked by an UPDATE."

// relay is the polling relay of bench/relay.
type relay struct {
	again bool // polls again at once while there is more
}

// Name implements rig.Contender.
func (r relay) Name() string {
	if r.again {
		return "relay without pauses"
	}
	return "relay"
}

// Start implements rig.Contender.
func (r relay) Start(ctx context.Context, job rig.Job) (*rig.Process, error) {
	args := []string{"-postgres", job.Postgres, "-brokers", strings.Join(job.Brokers, ","), "-table", job.Table, "-topic", job.Topic}
	if r.again {
		args = append(args, "-again")
	}
	cmd := exec.CommandContext(ctx, relayBinary, args...)
	cmd.Env = append(os.Environ(), "PGAPPNAME="+job.Slot) // rig knows its session by that
	return rig.StartProcess(cmd)
}
