# The targets of this file are listed by `make help`.

GOLANGCI_VERSION := v2.15.0
VERSION          := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS          := -s -w -X github.com/pombo-cdc/pombo/cli.Version=$(VERSION)
FUZZTIME         ?= 1m
DURATION         ?= 10m
TESTFLAGS        ?=
BENCHFLAGS       ?=

# -count=1 in the tests: Go does not see that those of integration build the binary, and would repeat an old result.
export CGO_ENABLED ?= 0

.DEFAULT_GOAL := help
.PHONY: help build demo test test-race test-faults chaos lint fuzz bench bench-peers clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/pombo
	go build -trimpath -ldflags '$(LDFLAGS)' -o bin/pombo .

demo: build ## run the main job on a throw-away Postgres and Kafka, about 20 s
	go run ./examples/demo

test: build ## run all tests but the long ones; POMBO_TEST_REAL=1 refuses the embedded Kafka
	go test -count=1 -timeout 15m $(TESTFLAGS) ./...

test-race: build ## run all tests with the race detector, the connector under test included
	CGO_ENABLED=1 go test -count=1 -race -timeout 30m $(TESTFLAGS) ./...

test-faults: build ## run all tests of integration, the long ones under faults included
	go test -count=1 -tags faults -timeout 60m $(TESTFLAGS) ./integration/...

chaos: ## write for DURATION (10m) while everything fails at random; SEED=n repeats a run; the record goes to stdout
	@$(MAKE) --no-print-directory build >&2
	@go run ./integration/chaos -duration $(DURATION) $(if $(SEED),-seed $(SEED))

lint: ## check the code with golangci-lint
	go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION) run ./...

fuzz: ## fuzz every decoder and parser, FUZZTIME (1m) each
	@go list -f '{{.ImportPath}} {{.Dir}}' ./... | while read -r package dir; do \
	  for target in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$$dir"/*_test.go 2>/dev/null | cut -d' ' -f2); do \
	    echo "$$package $$target"; \
	    go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x "$$package" || exit 1; \
	  done; \
	done

bench: build ## measure drain, latency, scale and idle, each beside a reference; BENCHFLAGS="-suite drain" measures less
	go run ./bench $(BENCHFLAGS)

bench-peers: build ## measure drain and latency beside Debezium and a polling relay; needs Java and Maven
	go build -o bin/relay ./bench/relay
	go run ./bench/peers $(BENCHFLAGS)

clean: ## remove what the other targets made
	rm -rf bin bench/results
	go clean -testcache
