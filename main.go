// Pombo moves the committed rows of a Postgres outbox table to Kafka.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/pombo-cdc/pombo/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal is not caught: it ends the process at once
	os.Exit(cli.Run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr))
}
