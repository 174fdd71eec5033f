package sink

import "github.com/IBM/sarama"

// connections carry produce requests, one to the address of each leader. They are not those of the
// client, which it opens and closes as it likes, and over which it asks for metadata: sarama locks a connection
// until such a question is answered, and the sending goroutine would wait for one slow broker while
// the others have nothing to do.
//
// They belong to the goroutine of lookups.
type connections struct {
	conf    *sarama.Config
	open    map[string]*sarama.Broker
	dialing map[string]*sarama.Broker
	refused map[string]error // in this round: nobody waits for the same broker twice
}

func newConnections(conf *sarama.Config) *connections {
	patient := *conf
	patient.Net.ReadTimeout = readTimeout
	return &connections{conf: &patient, open: make(map[string]*sarama.Broker), dialing: make(map[string]*sarama.Broker)}
}

// dial begins to connect to an address, if that has not been done. All brokers that a round needs are dialled before the
// first of them is waited for, so that several silent ones take no longer than one.
func (c *connections) dial(address string) {
	if c.open[address] != nil || c.dialing[address] != nil || c.refused[address] != nil {
		return
	}
	conn := sarama.NewBroker(address)
	if err := conn.Open(c.conf); err != nil {
		c.refused[address] = err
		return
	}
	c.dialing[address] = conn
}

// get returns the connection to an address, and makes it if there is none.
func (c *connections) get(address string) (*sarama.Broker, error) {
	c.dial(address)
	if conn := c.dialing[address]; conn != nil {
		delete(c.dialing, address)
		if _, err := conn.Connected(); err != nil { // it waits until the connection is made or refused
			c.refused[address] = err
		} else {
			c.open[address] = conn
		}
	}
	return c.open[address], c.refused[address]
}

// begin starts a round: connections that are lost are closed and will be made anew.
func (c *connections) begin(lost []*sarama.Broker) {
	c.refused = make(map[string]error)
	for _, conn := range lost {
		if c.open[conn.Addr()] == conn {
			delete(c.open, conn.Addr())
		}
		_ = conn.Close() // it is broken: only the next connection matters
	}
}

// close ends all connections. What is in flight on them gets its error.
func (c *connections) close() {
	for _, conns := range []map[string]*sarama.Broker{c.open, c.dialing} {
		for _, conn := range conns {
			_ = conn.Close() // nothing is left to lose
		}
	}
}
