package sink

import (
	"errors"
	"time"

	"github.com/IBM/sarama"
	"github.com/rs/zerolog"
)

// How many lines go to the log in a minute: for one cause, however many topics it hits, and of those for one topic.
const (
	linesOfCause = 10
	linesOfTopic = 2
)

// Causes that are not an error of a broker.
const (
	recovery = "recovery"
	network  = "network"
)

// lines is what has been logged lately, by cause.
type lines map[string]*zerolog.BurstSampler

// allow reports whether there is room for one more line about a cause, and takes it.
func (l lines) allow(cause string) bool {
	budget := l[cause]
	if budget == nil {
		budget = &zerolog.BurstSampler{Burst: linesOfCause, Period: time.Minute}
		l[cause] = budget
	}
	return budget.Sample(zerolog.WarnLevel)
}

// causeOf returns what a broker said, without what it was said about.
func causeOf(err error) string {
	var code sarama.KError
	if errors.As(err, &code) {
		return code.Error()
	}
	return network
}
