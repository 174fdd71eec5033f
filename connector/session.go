package connector

import (
	"cmp"
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pombo-cdc/pombo/checkpoint"
	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/replication"
	"github.com/pombo-cdc/pombo/sink"
)

// errGrace ends what is still under way when the grace period after a stop is over.
var errGrace = errors.New("the time to stop is over")

// sessionTerm is how long a session lasts before the next takes its place. Kafka forgets the transactional id of one that is older
// than transactional.id.expiration.ms, 7 days by default, and could not fence it off any more.
const sessionTerm = 24 * time.Hour

var errTerm = errors.New("the session has come of age")

// session is one life of the connector: from having the slot to losing either side, or to a stop.
type session struct {
	cfg     Config
	held    *heldSlot
	pool    *decoder.Pool
	flushed *checkpoint.Position
	filled  chan *decoder.Batch
}

// runSession streams until stop is done or either side is lost. last is what the session before has left to do, and then what
// this one leaves.
func runSession(stop context.Context, cfg Config, last *ending) error {
	held, err := acquireSlot(stop, cfg, last)
	if err != nil {
		return explainPooler(err)
	}
	s := &session{
		cfg:     held.cfg,
		held:    held,
		pool:    decoder.NewPool(cfg.Buffer, cfg.Layout),
		flushed: new(checkpoint.Position),
		filled:  make(chan *decoder.Batch, decoder.Batches),
	}
	err = s.run(stop)
	_ = held.stream.Close()
	*last = ending{held.record, s.flushed.Load()}
	last.tryWrite(held.cfg)
	return err
}

// run has its stages work until stop is done, or something is found that needs an operator: then what is in flight gets the
// grace period to be acknowledged and confirmed.
func (s *session) run(stop context.Context) error {
	log := s.cfg.Log
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(stop))
	defer cancel(nil)
	drain, stopFor := context.WithCancelCause(stop)
	defer stopFor(nil)
	defer time.AfterFunc(cmp.Or(s.cfg.term, sessionTerm), func() { stopFor(errTerm) }).Stop()
	defer context.AfterFunc(drain, func() {
		line := log.Info().Stringer("grace", s.cfg.Grace)
		if errors.Is(context.Cause(drain), errTerm) {
			line = line.Str("reason", errTerm.Error()) // of any other an operator is told, at the end
		}
		line.Msg("stopping: what is under way is published and confirmed first")
		if sleep(ctx, s.cfg.Grace) {
			cancel(errGrace)
		}
	})()

	err := s.work(ctx, drain, stopFor)
	switch {
	case drain.Err() == nil:
		return err
	case err != nil && stop.Err() != nil:
		log.Warn().Err(err).Msg("stopped before everything was confirmed: some events will be sent again")
	case err == nil:
		log.Info().Stringer("confirmed", s.flushed.Load()).Msg("everything received is published and confirmed")
	}
	if stop.Err() == nil {
		err = errors.Join(context.Cause(drain), err)
	}
	return err
}

// work runs the stages side by side. Kafka may come when it comes: the receiver talks to Postgres from the beginning.
func (s *session) work(ctx, drain context.Context, stopFor context.CancelCauseFunc) error {
	receiver := replication.NewReceiver(s.held.stream, s.cfg.Source, s.cfg.Layout, s.pool, s.filled, s.flushed)
	group, session := errgroup.WithContext(ctx)
	received, done := context.WithCancel(session)
	watched, unwatch := context.WithCancel(drain)
	group.Go(func() error {
		defer unwatch()
		defer done()
		return receiver.Run(session, drain)
	})
	group.Go(func() error { return s.send(session, received) })
	group.Go(func() error {
		err := newWatch(s).run(watched)
		if NeedsOperator(err) {
			stopFor(err)
			return nil
		}
		return err
	})
	return group.Wait()
}

// send publishes what is received. It is done, too, when the receiver is: while there is no Kafka yet, that means that nothing
// was received, or that the session is over.
func (s *session) send(ctx, received context.Context) error {
	to := s.cfg.Kafka
	to.Parking, to.Halt = s.held.parking, !s.cfg.Park
	kafka, err := sink.Open(received, to, s.cfg.Router, s.pool, s.flushed, s.cfg.Log)
	switch {
	case received.Err() != nil && err != nil:
		return nil
	case err != nil:
		return err
	}
	defer func() { _ = kafka.Close() }()
	s.cfg.Log.Info().Str("slot", s.cfg.Source.Slot).Stringer("confirmed", s.held.stream.Confirmed()).Msg("streaming")
	return kafka.Run(ctx, s.filled)
}
