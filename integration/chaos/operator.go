package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
)

const (
	lowLimit  = 128 << 10 // max.message.bytes of the topics, until an operator raises it
	highLimit = 1 << 20
	// poisonPayload is between the two, in hex, which nothing that is fast makes much smaller.
	poisonPayload = 400 << 10

	// retryPart is how many events a retry publishes before it deletes them: so many come again if it is cut off.
	retryPart = 1000
	// retryLimit is how long a retry may take. One that takes longer ends the run.
	retryLimit = 3 * time.Minute
)

// operator cures what keeps events parked, or tries to: one retry at a time.
type operator struct {
	retries   int
	published int // events, by retries
	cutOff    int // retries that Postgres or Kafka ended
}

// retryParked raises the limits of the topics, publishes what is parked, and lowers them again. While brokers are away
// limits may stay as they are: then the retry is in vain, or what should have been parked is published.
func (a *act) retryParked() error {
	_ = a.stage.limitTopics(highLimit)
	_, err := a.stage.retry(a.ctx)
	_ = a.stage.limitTopics(lowLimit)
	return err
}

// retryInVain publishes nothing but what had to wait behind an event that fits by now.
func (a *act) retryInVain() error {
	_, err := a.stage.retry(a.ctx)
	return err
}

func (s *stage) limitTopics(limit int) error {
	admin, err := sarama.NewClusterAdmin(s.kafka.Direct(), nil)
	if err != nil {
		return fmt.Errorf("limit topics: %w", err)
	}
	defer func() { _ = admin.Close() }()
	for _, topic := range aggregateTypes {
		entries := map[string]*string{"max.message.bytes": new(strconv.Itoa(limit))}
		if err := admin.AlterConfig(sarama.TopicResource, topic, entries, false); err != nil {
			return fmt.Errorf("limit topic %s: %w", topic, err)
		}
	}
	return nil
}

var publishedLine = regexp.MustCompile(`(?m)^published ([0-9,]+) events?$`)

// retry runs `pombo parked retry` and reports whether nothing is left.
func (s *stage) retry(ctx context.Context) (done bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, retryLimit, errors.New("it does not end"))
	defer cancel()
	args := []string{"parked", "retry", "--postgres", s.dsn, "--brokers", strings.Join(s.kafka.Brokers(), ","), "--topic", topicTemplate, "--log-level", "error"}
	out, err := exec.CommandContext(ctx, binary, args...).CombinedOutput()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return false, fmt.Errorf("pombo parked retry: %w", context.Cause(ctx))
	case err != nil && !errors.As(err, &exit):
		return false, err
	}
	s.operator.retries++
	if said := publishedLine.FindSubmatch(out); said != nil {
		n, _ := strconv.Atoi(strings.ReplaceAll(string(said[1]), ",", ""))
		s.operator.published += n
	}
	switch {
	case err == nil:
		return true, nil
	case exit.ExitCode() == 1: // Postgres or Kafka went away
		s.operator.cutOff++
		return false, nil
	case exit.ExitCode() == 3: // some are still refused
		return false, nil
	default:
		return false, fmt.Errorf("pombo parked retry: %w: %s", err, out)
	}
}

// publishParked has everything published that is parked at the end.
func (s *stage) publishParked(ctx context.Context, conn *pgx.Conn) error {
	err := await(ctx, "the topics' limits cannot be raised", func() (bool, error) { return s.limitTopics(highLimit) == nil, nil })
	if err != nil {
		return err
	}
	return await(ctx, "parked events are left", func() (bool, error) {
		if done, err := s.retry(ctx); !done {
			return false, err
		}
		var left int
		err := conn.QueryRow(ctx, `SELECT count(*) FROM pombo.parked_event`).Scan(&left)
		return left == 0, err
	})
}
