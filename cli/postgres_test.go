package cli

import (
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hard is a password with everything that has a meaning somewhere.
const hard = `p@s:s/w%rd #?&'\ ü€"=,`

func TestPasswordsMayBeAnything(t *testing.T) {
	quoted := `p@s:s/w%rd #?&\'\\ ü€"=,` // as keywords take it
	inURL := (&url.URL{Scheme: "postgres", User: url.UserPassword("app", hard), Host: "db", Path: "/shop"}).String()
	keywords := "host=db user=app dbname=shop password='" + quoted + "'"
	for name, give := range map[string]func(t *testing.T) []string{
		"URL":         func(*testing.T) []string { return []string{"--postgres", inURL} },
		"keywords":    func(*testing.T) []string { return []string{"--postgres", keywords} },
		"environment": func(t *testing.T) []string { t.Setenv("POMBO_POSTGRES", keywords); return nil },
		"file": func(t *testing.T) []string {
			return []string{"--config", writeConfig(t, "postgres: "+inURL+"\n")}
		},
		"PGPASSWORD": func(t *testing.T) []string {
			t.Setenv("PGPASSWORD", hard)
			return []string{"--postgres", "postgres://app@db/shop"}
		},
		"libpq variables": func(t *testing.T) []string {
			for name, text := range map[string]string{"PGHOST": "db", "PGUSER": "app", "PGDATABASE": "shop", "PGPASSWORD": hard} {
				t.Setenv(name, text)
			}
			return nil
		},
		"passfile": func(t *testing.T) []string {
			path := filepath.Join(t.TempDir(), "pass")
			require.NoError(t, os.WriteFile(path, []byte(`db:5432:shop:app:p@s\:s/w%rd #?&'\\ ü€"=,`+"\n"), 0o600))
			return []string{"--postgres", "postgres://app@db/shop?passfile=" + path}
		},
	} {
		t.Run(name, func(t *testing.T) {
			isolate(t)
			cfg, err := configure(t, append(give(t), "--brokers", "k1")...)
			require.NoError(t, err)
			assert.Equal(t, hard, cfg.Source.Postgres.Password)
			assert.Equal(t, "db", cfg.Source.Postgres.Host)
			assert.Equal(t, "shop", cfg.Source.Postgres.Database)
		})
	}
}

// A password that is not encoded as it should be ends up in any part of the URL, and pgx's message shows some of them.
func TestSecretsNeverShow(t *testing.T) {
	const canary = "canary"
	for _, dsn := range []string{
		"postgres://app:canary@127.0.0.1:1/shop",
		"postgres://app:p@s:canary/w%rd@127.0.0.1:1/shop",
		"postgres://app:canary/x@127.0.0.1:1/shop",
		"postgres://app:1/canary@127.0.0.1:1/shop",
		"postgres://app:x@canary@127.0.0.1:1/shop",
		"postgres://app:canary#x@127.0.0.1:1/shop",
		"postgres://app:x?canary@127.0.0.1:1/shop",
		"postgres://app:canary%zz@127.0.0.1:1/shop",
		"postgres://app:x canary@127.0.0.1:1/shop",
		"postgres://app:canary@127.0.0.1:port/shop",
		"postgres://app:canary@127.0.0.1:1/shop?sslmode=maybe",
		"postgres://app:canary@127.0.0.1:1/shop?sslmode=verify-full&sslrootcert=/nowhere",
		"postgres://127.0.0.1:1/shop?password=canary&connect_timeout=-1",
		"postgres://127.0.0.1:1/shop?user=app&password=canary",
		"host=127.0.0.1 port=1 password=x canary user=app",
		"host=127.0.0.1 port=1 password='canary",
		"host=127.0.0.1 port=1 password=canary service=none",
		"host=127.0.0.1 port=1 password=canary target_session_attrs=x",
		"mysql://app:canary@127.0.0.1:1/shop",
		"app:canary@127.0.0.1:1/shop",
		"canary",
	} {
		for _, command := range []string{"setup", "status", "teardown"} {
			for _, give := range []func(t *testing.T) []string{
				func(*testing.T) []string { return []string{"--postgres", dsn} },
				func(*testing.T) []string { return []string{"--postgress", dsn} },
				func(*testing.T) []string { return []string{"--postgress=" + dsn} },
				func(*testing.T) []string { return []string{"--", dsn + ":"} },
				func(t *testing.T) []string { t.Setenv("POMBO_POSTGRES", dsn); return nil },
				func(t *testing.T) []string { t.Setenv("POMBO_POSTGRES", dsn); return []string{"--help"} },
				func(t *testing.T) []string { return []string{"--config", writeConfig(t, "postgres: \""+dsn+"\"\n")} },
				func(t *testing.T) []string {
					return []string{"--config", writeConfig(t, "postgres: ["+dsn+", "+dsn+"]\n")}
				},
				func(t *testing.T) []string { return []string{"--config", writeConfig(t, dsn)} },
			} {
				isolate(t)
				t.Setenv("PGCONNECT_TIMEOUT", "5")
				args := append([]string{command}, give(t)...)
				if command == "teardown" {
					args = append(args, "--yes")
				}
				code, stdout, stderr := execute(t, args...)
				assert.NotContains(t, stdout+stderr, canary, "%v", args)
				assert.Contains(t, []int{exitStopped, exitFailed, exitUsage}, code)
			}
		}
	}
}

func TestDSNMistakesHaveAWayOut(t *testing.T) {
	isolate(t)
	const encode = "--postgres: neither a URL nor keywords that Postgres takes: in a URL, percent-encode @ : / # ? % and spaces of the password, " +
		"between keywords, put it in single quotes, or leave it out and give it in PGPASSWORD or a passfile"
	for dsn, want := range map[string]string{
		"postgres://app:a/b@db/shop":                           encode,
		"postgres://app:1/b@db/shop":                           encode,
		"postgres://app:a@b@db/shop":                           encode,
		"postgres://app:a%b@db/shop":                           encode,
		"host=db password=a b":                                 encode,
		"postgres://db/shop?sslmode=maybe":                     "--postgres: sslmode, or a certificate or key that goes with it, cannot be used",
		"postgres://db/shop?sslmode=require&sslrootcert=/none": "--postgres: cannot read /none: no such file or directory",
		"postgres://db/shop?connect_timeout=soon":              "--postgres: connect_timeout has to be a number of seconds",
		"postgres://db/shop?target_session_attrs=main":         "--postgres: target_session_attrs has to be any, read-write",
		"service=none":                                         "--postgres: the service is not in the service file",
	} {
		_, err := configure(t, "--brokers", "k1", "--postgres", dsn)
		require.ErrorContains(t, err, want, dsn)
	}
	t.Setenv("PGHOST", "db")
	t.Setenv("PGSSLMODE", "maybe")
	_, err := configure(t, "--brokers", "k1")
	require.ErrorContains(t, err, "the PG… variables of the environment: sslmode")
}

func TestConnectionDefaults(t *testing.T) {
	isolate(t)
	cfg, err := configure(t, minimal()...)
	require.NoError(t, err)
	assert.Equal(t, connectTimeout, cfg.Source.Postgres.ConnectTimeout)
	assert.Equal(t, "pombo", cfg.Source.Postgres.RuntimeParams["application_name"])
	assert.Nil(t, cfg.Source.Postgres.ValidateConnect)

	cfg, err = configure(t, "--brokers", "k1", "--postgres",
		"postgres://app@[::1]:1,b:2/a%40b?connect_timeout=3&application_name=shop&replication=database")
	require.NoError(t, err)
	assert.Equal(t, 3*time.Second, cfg.Source.Postgres.ConnectTimeout)
	assert.Equal(t, map[string]string{"application_name": "shop", "client_encoding": "UTF8"}, cfg.Source.Postgres.RuntimeParams)
	assert.NotNil(t, cfg.Source.Postgres.ValidateConnect, "of several hosts, the primary")
	assert.Equal(t, "pombo-a@b-pombo", cfg.Kafka.ProducerName)
}
