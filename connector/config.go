package connector

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/replication"
	"github.com/pombo-cdc/pombo/router"
	"github.com/pombo-cdc/pombo/sink"
)

// Defaults of a Config.
const (
	DefaultBuffer = 16 << 20         // bytes
	DefaultGrace  = 10 * time.Second // from the signal to the exit
)

// Config is everything that a connector needs. The caller has validated it.
type Config struct {
	Source replication.Source
	Layout *decoder.Layout
	Router *router.Router
	Kafka  sink.Config
	Park   bool // events that cannot be published, in pombo.parked_event, instead of stopping
	Buffer int  // bytes of rows in flight
	Grace  time.Duration
	Log    zerolog.Logger

	watch time.Duration // 0: watchInterval
	term  time.Duration // 0: sessionTerm
}
