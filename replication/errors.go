package replication

import "fmt"

// ActionError is a state of Postgres that stays until an operator changes it. Trying again
// does not help, so the connector stops.
type ActionError struct {
	Problem string // one clause that names the thing
	Cure    string // what to do, with the command or SQL
}

func (e *ActionError) Error() string { return fmt.Sprintf("%s: %s", e.Problem, e.Cure) }
