package cli

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/pombo-cdc/pombo/replication"
	"github.com/pombo-cdc/pombo/sink"
)

const (
	defaultBrokerPort = "9092"

	// The budget of rows in flight, in bytes. The smallest leaves each of the batches that share it room for rows, and with the
	// largest a place in a batch is an int32.
	minBuffer = 1 << 20
	maxBuffer = 1 << 37
)

// kafka returns how to write to Kafka what comes from src.
func (s *settings) kafka(src replication.Source) sink.Config {
	cfg := sink.Config{Brokers: s.brokers(), CreateTopics: s.on("create-topics")}
	if err := cfg.Compression.UnmarshalText([]byte(s.text("compression"))); err != nil {
		s.refuse("compression", "%q is none of none, gzip, snappy, lz4 and zstd", s.text("compression"))
	}
	if s.on("fencing") && src.Postgres != nil {
		// Nothing of the machine is part of it, so that whichever instance comes next shuts out the one before.
		cfg.ProducerName = fmt.Sprintf("pombo-%s-%s", cmp.Or(src.Postgres.Database, src.Postgres.User), src.Slot)
	}
	return cfg
}

func (s *settings) brokers() []string {
	if !s.has("brokers") {
		s.mistake(errors.New("--brokers is missing: name some brokers as host:port"))
	}
	var all []string
	for i, text := range s.texts("brokers") {
		broker, err := parseBroker(text)
		if err != nil {
			s.refuse("brokers", "broker %d %w", i+1, err)
		} else if !slices.Contains(all, broker) {
			all = append(all, broker)
		}
	}
	return all
}

// parseBroker completes a broker's address. Its error does not repeat the text, which may be a URL with a password.
func parseBroker(text string) (string, error) {
	if strings.ContainsAny(text, "/@ ") {
		return "", errors.New("is not host:port: leave out scheme, user and path")
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = strings.Trim(text, "[]"), defaultBrokerPort
		if strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return "", errors.New("is not host:port")
		}
	}
	if host == "" {
		return "", errors.New("lacks a host")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", errors.New("has no port between 1 and 65535")
	}
	return net.JoinHostPort(host, port), nil
}

// buffer returns the budget of rows in flight, in bytes.
func (s *settings) buffer() int {
	text := s.text("buffer")
	n, err := humanize.ParseBytes(text)
	switch {
	case err != nil:
		s.refuse("buffer", "%q is not a size such as 16MiB", text)
	case n < minBuffer || n > maxBuffer:
		s.refuse("buffer", "%s is not between %s and %s", text, humanize.IBytes(minBuffer), humanize.IBytes(maxBuffer))
	}
	return int(n)
}
