//go:build race

package integration

// raceFlags build the connector under test with the race detector when the tests are.
var raceFlags = []string{"-race"}
