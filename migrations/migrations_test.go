package migrations

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOutboxHasTheNamesOfTheReferenceSystem(t *testing.T) {
	sql, err := Outbox("public", "outbox_event")
	require.NoError(t, err)
	assert.Contains(t, sql, `CREATE TABLE IF NOT EXISTS "public"."outbox_event" (`)
	assert.Contains(t, sql, `CREATE INDEX IF NOT EXISTS "idx_outbox_unpublished" ON "public"."outbox_event" (created_at) WHERE published_at IS NULL;`)
	for _, column := range Columns() {
		assert.Regexp(t, `\n  `+column+` +\w+`, sql)
	}
	assert.Equal(t, len(Columns()), strings.Count(sql, "\n  "))
}

func TestTwoOutboxesOfASchemaHaveTwoIndexes(t *testing.T) {
	sql, err := Outbox(`My "App"`, "Second")
	require.NoError(t, err)
	assert.Contains(t, sql, `CREATE INDEX IF NOT EXISTS "idx_Second_unpublished" ON "My ""App"""."Second" (created_at)`)
	sql, err = ProcessedEvent(`My "App"`)
	require.NoError(t, err)
	assert.Contains(t, sql, `CREATE TABLE IF NOT EXISTS "My ""App"""."processed_event" (`)
}
