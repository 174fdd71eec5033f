package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pombo-cdc/pombo/integration/stack"
)

// act is a fault while it is inflicted.
type act struct {
	fault
	ctx   context.Context // ends with the run
	over  context.Context // ends when faults have to end
	stage *stage
	where string // what it hit
}

// last waits as long as the fault lasts, or until faults have to end.
func (a *act) last() {
	select {
	case <-time.After(a.lasts):
	case <-a.over.Done():
	}
}

const (
	// walSenderTimeout is how long Postgres waits for an instance that stands still, before it gives up its session.
	walSenderTimeout = 3 * time.Second
	// frozen is how long an instance stands still at least, so that the other takes over and it wakes up as a zombie.
	frozen = 3 * walSenderTimeout
	// stopLimit is how long a server may take to stop in an orderly way.
	stopLimit = time.Minute

	trickle  = 200 << 10 // bytes a second of a throttled connection: less than what is written
	distance = 40 * time.Millisecond
)

// tracks are all faults. Brokers and Postgres are on one track, so that no two brokers are away at once: of three replicas
// two have to be in sync.
func tracks() []track {
	return []track{
		{"pombo", 2 * time.Second, 12 * time.Second, []kind{
			{"kill pombo", 6, 0, (*act).killPombo},
			{"freeze pombo", 3, time.Second, (*act).freezePombo},
			{"stop pombo", 1, 0, (*act).stopPombo},
			{"kill the standby", 1, 0, (*act).killStandby},
		}},
		{"servers", time.Second, 8 * time.Second, []kind{
			{"stop broker", 2, 5 * time.Second, func(a *act) error { return a.downBroker((*stack.Kafka).Stop) }},
			{"kill broker", 2, 5 * time.Second, func(a *act) error { return a.downBroker((*stack.Kafka).Kill) }},
			{"pause broker", 2, 8 * time.Second, (*act).pauseBroker},
			{"restart Postgres fast", 1, 2 * time.Second, func(a *act) error { return a.downPostgres(stack.Fast) }},
			{"restart Postgres immediately", 2, 2 * time.Second, func(a *act) error { return a.downPostgres(stack.Immediate) }},
			{"terminate walsender", 2, 0, (*act).terminateWalsender},
		}},
		{"operator", 5 * time.Second, 20 * time.Second, []kind{
			{"retry parked events", 2, 0, (*act).retryParked},
			{"retry parked events in vain", 1, 0, (*act).retryInVain},
		}},
		{"network", time.Second, 8 * time.Second, []kind{
			{"reset connections to Postgres", 2, 0, func(a *act) error { a.toPostgres().Reset(); return nil }},
			{"stall connections to Postgres", 2, 8 * time.Second, func(a *act) error { return a.stall(a.toPostgres()) }},
			{"delay connections to Postgres", 1, 5 * time.Second, func(a *act) error { return a.delay(a.toPostgres()) }},
			{"throttle connections to Postgres", 1, 5 * time.Second, func(a *act) error { return a.throttle(a.toPostgres()) }},
			{"cut Postgres off", 1, 5 * time.Second, func(a *act) error { return a.cut(a.toPostgres()) }},
			{"reset connections to a broker", 2, 0, func(a *act) error { a.toBroker().Reset(); return nil }},
			{"stall connections to a broker", 2, 8 * time.Second, func(a *act) error { return a.stall(a.toBroker()) }},
			{"delay connections to a broker", 1, 5 * time.Second, func(a *act) error { return a.delay(a.toBroker()) }},
			{"throttle connections to a broker", 1, 5 * time.Second, func(a *act) error { return a.throttle(a.toBroker()) }},
			{"cut a broker off", 1, 5 * time.Second, func(a *act) error { return a.cut(a.toBroker()) }},
		}},
	}
}

func (a *act) active() *instance {
	i := a.stage.active()
	a.where = i.name
	return i
}

func (a *act) standby() *instance {
	i := a.stage.standby()
	a.where = i.name
	return i
}

func (a *act) killPombo() error {
	a.active().signal(syscall.SIGKILL)
	return nil
}

func (a *act) stopPombo() error {
	a.active().signal(syscall.SIGTERM)
	return nil
}

func (a *act) killStandby() error {
	a.standby().signal(syscall.SIGKILL)
	return nil
}

func (a *act) freezePombo() error {
	zombie := a.active()
	zombie.signal(syscall.SIGSTOP)
	a.lasts += frozen
	a.last()
	zombie.signal(syscall.SIGCONT)
	return nil
}

func (a *act) broker() *stack.Kafka {
	nodes := a.stage.kafka.Nodes()
	a.where = fmt.Sprint("broker ", 1+a.target%len(nodes))
	return nodes[a.target%len(nodes)]
}

// downBroker ends a broker and starts it again. It is over when another may go.
func (a *act) downBroker(end func(*stack.Kafka, context.Context) error) error {
	limited, cancel := context.WithTimeoutCause(a.ctx, stopLimit, errors.New("the broker does not stop"))
	defer cancel()
	if err := end(a.broker(), limited); err != nil {
		return err
	}
	a.last()
	return errors.Join(a.broker().Start(a.ctx), a.stage.kafka.AwaitInSync(a.ctx))
}

func (a *act) pauseBroker() error {
	if err := a.broker().Pause(); err != nil {
		return err
	}
	a.last()
	return errors.Join(a.broker().Resume(), a.stage.kafka.AwaitInSync(a.ctx))
}

func (a *act) downPostgres(mode stack.StopMode) error {
	limited, cancel := context.WithTimeoutCause(a.ctx, stopLimit, errors.New("it waits for pombo, which does not let it go"))
	defer cancel()
	if err := a.stage.postgres.Stop(limited, mode); err != nil {
		return err
	}
	a.last()
	return a.stage.postgres.Start(a.ctx)
}

func (a *act) terminateWalsender() error {
	conn, err := pgx.Connect(a.ctx, a.stage.dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(a.ctx) }()
	_, err = conn.Exec(a.ctx, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active`)
	return err
}

// toPostgres is mostly the connection of the instance that works.
func (a *act) toPostgres() *stack.Proxy {
	if a.target%4 == 0 {
		return a.standby().proxy
	}
	return a.active().proxy
}

func (a *act) toBroker() *stack.Proxy { return a.broker().Proxy() }

func (a *act) stall(p *stack.Proxy) error {
	ways := []stack.Direction{stack.Both, stack.Upload, stack.Download}
	p.Stall(ways[a.target/8%len(ways)])
	return a.heal(p)
}

func (a *act) delay(p *stack.Proxy) error {
	p.Delay(distance, distance/2)
	return a.heal(p)
}

func (a *act) throttle(p *stack.Proxy) error {
	p.Throttle(stack.Both, trickle)
	return a.heal(p)
}

func (a *act) cut(p *stack.Proxy) error {
	p.Cut()
	return a.heal(p)
}

func (a *act) heal(p *stack.Proxy) error {
	a.last()
	if err := p.Heal(); err != nil {
		return fmt.Errorf("heal: %w", err)
	}
	return nil
}
