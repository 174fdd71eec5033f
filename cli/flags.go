package cli

import (
	"strings"

	"github.com/dustin/go-humanize"
	urfave "github.com/urfave/cli/v2"

	"github.com/pombo-cdc/pombo/connector"
	"github.com/pombo-cdc/pombo/router"
)

// The groups of flags in --help.
const (
	inPostgres = "Postgres"
	inEvents   = "Events"
	inKafka    = "Kafka"
	inGeneral  = "General"
)

// The flags. Their defaults are what --help shows; a flag without one is left out or has to be given.
func configFlag() urfave.Flag {
	return text(inGeneral, "config", "", "YAML `FILE` with the same settings, a key for each flag")
}

func postgresFlag() urfave.Flag {
	return text(inPostgres, "postgres", "",
		"`URL` or keywords of the database; the password is safer in PGPASSWORD or a passfile (default: PGHOST and its kin)")
}

func slotFlag() urfave.Flag {
	return text(inPostgres, "slot", "pombo", "`NAME` of the replication slot")
}

func publicationFlag() urfave.Flag {
	return text(inPostgres, "publication", "pombo", "`NAME` of the publication, without quotes")
}

func tableFlags() []urfave.Flag {
	return []urfave.Flag{
		text(inPostgres, "table", "public.outbox_event", "`TABLE` of the outbox, quoted where SQL needs it"),
		list(inEvents, "column", "`ROLE=COLUMN` where they differ; the roles are id, aggregate_type, aggregate_id, event_type, payload"),
		list(inEvents, "header", "`NAME=COLUMN` of a record header (default: eventId=id,eventType=event_type)"),
	}
}

func routeFlags() []urfave.Flag {
	return []urfave.Flag{
		text(inEvents, "topic", router.DefaultTopic, "`TEMPLATE` of the topic; it has the functions lower, upper, kebab, snake and plural"),
		list(inEvents, "route", "`TYPE=TOPIC` of an aggregate type, which wins over --topic"),
	}
}

// kafkaFlags are those of whatever writes to Kafka.
func kafkaFlags() []urfave.Flag {
	return []urfave.Flag{
		list(inKafka, "brokers", "`HOST:PORT` of some brokers; a port left out is 9092"),
		text(inKafka, "compression", "lz4", "`CODEC` of the record batches: none, gzip, snappy, lz4 or zstd"),
		toggle(inKafka, "create-topics", "create missing topics with the brokers' defaults"),
	}
}

// streamFlags are those of whatever writes to Kafka for as long as it runs.
func streamFlags() []urfave.Flag {
	return []urfave.Flag{
		text(inEvents, "on-poison", "park", "`park|halt` at an event that cannot be published: keep it and what is behind it for pombo parked, or stop"),
		text(inKafka, "fencing", "on", "`on|off`: shut out an instance that wakes up late, by the transactional id pombo-DATABASE-SLOT"),
		text(inKafka, "buffer", humanize.IBytes(connector.DefaultBuffer), "`SIZE` of the rows that may be in flight"),
	}
}

func logFlags() []urfave.Flag {
	return []urfave.Flag{
		text(inGeneral, "log-level", "info", "`LEVEL` of the log: trace, debug, info, warn or error"),
		text(inGeneral, "log-format", "auto", "`FORMAT` of the log: console for people, json, or auto, which is console on a terminal"),
	}
}

func createTableFlag() urfave.Flag {
	return toggle(inPostgres, "create-table", "create the outbox table and processed_event where they are missing")
}

func text(category, name, value, usage string) urfave.Flag {
	return &urfave.StringFlag{Category: category, Name: name, Value: value, Usage: usage + inEnvironment(name)}
}

// listFlag is a flag that can be repeated. Several values can also stand in one, between commas.
type listFlag struct{ *urfave.StringFlag }

func list(category, name, usage string) urfave.Flag {
	return listFlag{&urfave.StringFlag{Category: category, Name: name, Usage: usage + "; repeatable" + inEnvironment(name)}}
}

func toggle(category, name, usage string) urfave.Flag {
	return &urfave.BoolFlag{Category: category, Name: name, Usage: usage + inEnvironment(name), DisableDefaultText: true}
}

// inEnvironment is part of the usage, because urfave would show what it reads from the environment in --help.
func inEnvironment(name string) string { return " [$" + variable(name) + "]" }

// variable is the environment variable of a flag.
func variable(flag string) string {
	return "POMBO_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}
