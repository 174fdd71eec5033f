// Package sink delivers events: to Kafka, or to a person's terminal.
//
// The Kafka sink is built on sarama's Client and Broker.AsyncProduce with record batches of
// its own, because two promises need control of each request: a partition never has more than
// one of them in flight, so that no retry can reorder a key, and a request is repeated with the
// same sequence numbers for as long as it takes.
//
// One goroutine, the one that calls Run, owns all state. Whatever else happens (answers of
// brokers, metadata) is posted to it as a function to run.
package sink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"
	"github.com/rs/zerolog"

	"github.com/pombo-cdc/pombo/checkpoint"
	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/router"
)

// Kafka publishes events to topics. Use it for one session: Open, Run, Close.
type Kafka struct {
	cfg    Config
	router *router.Router
	pool   *decoder.Pool
	log    zerolog.Logger

	client   sarama.Client
	end      context.CancelFunc // closes the connections
	producer identity
	tracker  *checkpoint.Tracker
	build    assembler
	parker   *parker

	topics  map[string]*topic
	brokers map[*sarama.Broker]*broker
	lookup  *lookups
	lines   lines
	rested  *time.Timer // fires when a broker may be sent to again
	posts   chan func() error

	queued int          // events that are not settled
	poison *PoisonError // that could not be parked; set once: nothing is accepted any more, what is queued goes out

	// held is the batch of an event that cannot be routed. It is never recycled: with all batches free, everything
	// received would count as flushed.
	held *decoder.Batch
}

// postCapacity leaves room for every request that can be in flight to a few hundred brokers,
// so that no broker's reader waits for the sending goroutine.
const postCapacity = 1024

// haltPatience is how long events queued before a poisoned one get to go out before the session ends.
const haltPatience = 5 * time.Second

// Open connects to the brokers and takes a producer id, which fences off older instances of the same
// ProducerName. It gives up when ctx is done; once it has returned, the connections last until Close.
func Open(ctx context.Context, cfg Config, r *router.Router, pool *decoder.Pool, flushed *checkpoint.Position, log zerolog.Logger) (*Kafka, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, end)()
	client, err := connect(life, cfg)
	if err != nil {
		end()
		return nil, err
	}
	k := &Kafka{
		cfg:     cfg,
		router:  r,
		pool:    pool,
		log:     log,
		client:  client,
		end:     end,
		tracker: checkpoint.NewTracker(flushed),
		topics:  make(map[string]*topic),
		brokers: make(map[*sarama.Broker]*broker),
		lookup:  newLookups(),
		lines:   make(lines),
		rested:  newTimer(),
		posts:   make(chan func() error, postCapacity),
	}
	k.build.router = r
	k.build.codec = cfg.Compression
	if k.producer, err = k.initProducer(ctx); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	if k.parker, err = newParker(ctx, cfg.Parking); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// Close ends the connections.
func (k *Kafka) Close() error {
	k.end()
	k.lookup.asking.Wait()
	if k.parker != nil {
		k.parker.working.Wait()
	}
	return k.client.Close()
}

// Run publishes the batches of filled, recycles each when its events are acknowledged or parked, and returns nil when
// filled is closed and everything is settled. What cannot be delivered at the moment is tried for as long as it takes; an
// error means that the session has to end.
func (k *Kafka) Run(ctx context.Context, filled <-chan *decoder.Batch) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()                        // whoever parks or looks up for a Run that has ended must not hold up Close
	defer context.AfterFunc(ctx, k.end)() // a write to a silent broker must not hold up the end
	defer k.lookup.start(ctx, k)()
	defer k.parker.start(ctx, k)()
	var halt <-chan time.Time
	for filled != nil || k.queued > 0 {
		if err := k.step(ctx, &filled, halt); err != nil {
			return err
		}
		if k.poison != nil && halt == nil {
			filled, halt = nil, time.After(haltPatience)
		}
		k.send()
		k.lookup.request()
		k.parker.request()
	}
	if k.poison != nil {
		return k.poison
	}
	return nil
}

// step waits for one thing to happen and deals with it.
func (k *Kafka) step(ctx context.Context, filled *<-chan *decoder.Batch, halt <-chan time.Time) error {
	accept := *filled
	if k.tracker.Window() >= k.pool.Budget() {
		accept = nil // something is stuck: what flows past it is sent again after a crash, so it must have an end
	}
	select {
	case b, ok := <-accept:
		if !ok {
			*filled = nil
			return nil
		}
		k.accept(b)
		return nil
	case post := <-k.posts:
		return post()
	case <-k.lookup.due():
		return nil
	case <-k.rested.C:
		return nil
	case <-halt:
		return k.poison
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// accept queues the events of a batch behind those of the partitions they go to.
func (k *Kafka) accept(b *decoder.Batch) {
	entry := k.tracker.Add(b.Len(), b.Bytes(), b.LSN)
	for i := range b.Len() {
		it := item{entry: entry, batch: b, index: i}
		name, err := k.router.Topic(it.event())
		if err == nil {
			k.queued++
			k.enqueue(k.topic(name), it)
			continue
		}
		if !k.unroutable(it, err) {
			return
		}
	}
}

// enqueue puts an event behind those before it: where they are parked, it has to wait for them.
func (k *Kafka) enqueue(t *topic, it item) {
	if len(k.parker.lanes) > 0 {
		if parked := k.lanes(t, it); k.parker.blocks(parked) {
			k.parker.hold(parked)
			return
		}
	}
	k.place(t, it)
}

// place puts an event at the end of its partition's queue, or has it wait for the topic's partitions to be known.
func (k *Kafka) place(t *topic, it item) {
	if len(t.partitions) == 0 || t.resize > 0 {
		t.waiting.push(it)
		return
	}
	p := t.choose(k.router.Key(it.event()))
	p.queue.push(it)
	k.ready(p)
}

// ready lists a partition for the next request to its leader, if it has something to send and nothing in flight. An
// event that its topic does not take is got out of the way first.
func (k *Kafka) ready(p *partition) {
	for p.state == idle && !p.listed && p.queue.len() > 0 {
		switch {
		case p.leader.lost:
			p.state = waiting
			k.lookup.schedule(p.topic, retryDelay(p.failures))
		case p.sent > 0 || k.build.fits(p.queue.at(0).event(), p.topic.limit):
			p.asked = false
			p.listed = true
			p.leader.ready = append(p.leader.ready, p)
		case !p.asked: // the limit may have been raised since the topic was looked up
			p.asked = true
			p.state = waiting
			k.lookup.schedule(p.topic, 0)
		default:
			p.asked = false
			k.refused(p, k.build.tooLarge(p.queue.at(0).event(), p.topic.limit))
		}
	}
}

// send writes to every broker what is ready for it and what its free requests allow. Ready
// partitions share those requests evenly: with few partitions each has a request of its own and
// waits for nobody, with hundreds a request carries many.
func (k *Kafka) send() {
	var pause time.Duration
	for _, br := range k.brokers {
		if left := br.rest(); left > 0 {
			pause = min(cmp.Or(pause, left), left)
			continue
		}
		for len(br.ready) > 0 && br.open < maxOpenRequests {
			slots := maxOpenRequests - br.open
			share := (len(br.ready) + slots - 1) / slots
			k.produce(br, share)
		}
	}
	if pause > 0 {
		k.rested.Reset(pause)
	}
}

// produce sends one request with the next record batches of up to share ready partitions.
func (k *Kafka) produce(br *broker, share int) {
	r, message := k.assemble(br, share)
	err := br.conn.AsyncProduce(message, func(answer *sarama.ProduceResponse, err error) {
		k.posts <- func() error { return k.settle(r, answer, err) }
	})
	k.build.reset()
	if err == nil {
		return
	}
	if judge(err) == again {
		k.lost(br) // before anything else is written to it
	}
	k.posts <- func() error { return k.settle(r, nil, fmt.Errorf("write to broker %s: %w", br.conn.Addr(), err)) }
}

// assemble takes partitions off the ready list and builds their request.
func (k *Kafka) assemble(br *broker, share int) (*request, *sarama.ProduceRequest) {
	r := &request{broker: br}
	message := &sarama.ProduceRequest{Version: produceVersion, RequiredAcks: sarama.WaitForAll, Timeout: ackTimeoutMillis}
	size := 0
	for size < maxRequestBytes && len(r.partitions) < share {
		p := br.ready[len(r.partitions)]
		if size > 0 && k.build.size(p.queue.at(0).event()) > maxRequestBytes {
			break // it goes alone: should the request be refused as too large, then for this event
		}
		p.listed = false
		p.state = inFlight
		batch, n, bytes := k.build.batch(p, k.producer)
		p.sent = n
		size += bytes
		message.AddBatch(p.topic.name, p.id, batch)
		r.partitions = append(r.partitions, p)
	}
	br.ready = slices.Delete(br.ready, 0, len(r.partitions))
	br.open++
	return r, message
}
