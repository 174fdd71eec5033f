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
	refused map[string]error // in this round: nobody waits for the same broker twice
}

func newConnections(conf *sarama.Config) *connections {
	return &connections{conf: conf, open: make(map[string]*sarama.Broker)}
}

// get returns the connection to an address, and makes it if there is none.
func (c *connections) get(address string) (*sarama.Broker, error) {
	if conn := c.open[address]; conn != nil {
		return conn, nil
	}
	if err := c.refused[address]; err != nil {
		return nil, err
	}
	conn := sarama.NewBroker(address)
	err := conn.Open(c.conf)
	if err == nil {
		_, err = conn.Connected() // waits until the connection is made or refused
	}
	if err != nil {
		c.refused[address] = err
		return nil, err
	}
	c.open[address] = conn
	return conn, nil
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
	for _, conn := range c.open {
		_ = conn.Close() // nothing is left to lose
	}
}
