// Package rig measures what moves events from an outbox table to Kafka, and owns the servers that it does so on. All
// that is measured is a Contender, so that each has the same servers, events and clock.
package rig
