package sink

import (
	"testing"

	"go.uber.org/goleak"
)

// Sarama closes the connections of a closed client in the background; goleak asks again until they are gone.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// One goroutine for all meters, started by the first of them, which sarama's metrics never end.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}
