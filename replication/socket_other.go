//go:build !unix

package replication

import (
	"net"
	"time"
)

// unpolled leaves the connection as it is: what it is for is worth it on servers.
func unpolled(conn net.Conn) (net.Conn, error) { return conn, nil }

func pause(d time.Duration) { time.Sleep(d) }
