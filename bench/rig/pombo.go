package rig

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
)

// Binary is the connector, as `make build` makes it.
const Binary = "bin/pombo"

// Pombo is the connector itself. It takes Job.Topic as a template, so that it can publish to more than one topic.
type Pombo struct {
	Compression string // codec; empty: Pombo's default
}

// Name implements Contender.
func (p Pombo) Name() string {
	if p.Compression == "" {
		return "pombo"
	}
	return "pombo, " + p.Compression
}

// Start implements Contender.
func (p Pombo) Start(ctx context.Context, job Job) (*Process, error) {
	args := []string{"run", "--postgres", job.Postgres, "--brokers", strings.Join(job.Brokers, ","), "--slot", job.Slot,
		"--publication", job.Publication, "--table", job.Table, "--topic", job.Topic}
	if p.Compression != "" {
		args = append(args, "--compression", p.Compression)
	}
	return StartProcess(exec.CommandContext(ctx, Binary, args...))
}

// receiver is pg_recvlogical: the same protocol with the same options, and nothing done with what it reads. It ends by
// itself at an LSN, and publishes nothing.
type receiver struct {
	dir string // of the tool; empty: it is in PATH
	end string // LSN
}

func (r receiver) Name() string { return "pg_recvlogical" }

func (r receiver) Start(ctx context.Context, job Job) (*Process, error) {
	return StartProcess(exec.CommandContext(ctx, filepath.Join(r.dir, r.Name()), "--dbname", job.Postgres,
		"--slot", job.Slot, "--start", "--endpos", r.end, "--file", "/dev/null",
		"--option", "proto_version=1", "--option", "publication_names="+job.Publication))
}
