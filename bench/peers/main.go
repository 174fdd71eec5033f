package main

import (
	"context"
	"fmt"
	"os"

	"github.com/pombo-cdc/pombo/bench/rig"
)

func main() {
	ctx := context.Background()
	s, err := rig.StartServers(ctx, os.Stderr)
	if err != nil {
		panic(err)
	}
	defer s.Close()
	c, err := fetchConnect(ctx, os.Stderr)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.close()
	o, err := s.Load(ctx, rig.Shape{Events: 100000, Payload: 300, PerTransaction: 10, Keys: 10_000, Topics: 1, Partitions: 4})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range []rig.Contender{rig.Pombo{}, debezium{connect: c}} {
		m, err := s.Drain(ctx, c, o)
		fmt.Printf("%+v %v\n", m, err)
	}
}
