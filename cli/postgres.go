package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// connectTimeout holds where neither the DSN nor PGCONNECT_TIMEOUT says another.
const connectTimeout = 10 * time.Second

// postgres returns how to connect, from the flag or else from the variables of libpq.
func (s *settings) postgres() *pgx.ConnConfig {
	dsn := s.text("postgres")
	if dsn == "" && !s.has("postgres") && !slices.ContainsFunc([]string{"PGHOST", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE"}, isSet) {
		s.mistake(errors.New("--postgres is missing: give the database as a URL, or set PGHOST, PGDATABASE and PGUSER"))
		return nil
	}
	cfg, err := pgx.ParseConfig(dsn)
	if err == nil && isAmbiguous(dsn, cfg) {
		err = errors.New("an @ that is not percent-encoded")
	}
	if err != nil {
		origin := s.origin("postgres")
		if dsn == "" {
			origin = "the PG… variables of the environment"
		}
		s.mistake(fmt.Errorf("%s: %s", origin, explainDSN(err)))
		return nil
	}
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, connectTimeout)
	cfg.RuntimeParams["application_name"] = cmp.Or(cfg.RuntimeParams["application_name"], "pombo")
	cfg.RuntimeParams["client_encoding"] = "UTF8" // as all text here is, whatever database, role or PGCLIENTENCODING say
	delete(cfg.RuntimeParams, "replication")      // which kind of session it is, is for whoever opens it
	if cfg.ValidateConnect == nil && hasSeveralHosts(cfg) {
		cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary // the slot is there
	}
	return cfg
}

func isSet(variable string) bool { return os.Getenv(variable) != "" }

// isAmbiguous reports whether part of a password has been taken for part of the address: the names in it
// have an @ that is in the text as it stands.
func isAmbiguous(dsn string, cfg *pgx.ConnConfig) bool {
	return strings.Contains(dsn, "://") && !strings.Contains(dsn, "%40") && strings.Contains(cfg.Host+cfg.Database, "@")
}

func hasSeveralHosts(cfg *pgx.ConnConfig) bool {
	return slices.ContainsFunc(cfg.Fallbacks, func(f *pgconn.FallbackConfig) bool {
		return f.Host != cfg.Host || f.Port != cfg.Port
	})
}

// explainDSN says what is wrong without a word of the DSN: what pgx has masked for its message
// can still be a password in the wrong place.
func explainDSN(err error) string {
	message := err.Error()
	message = message[strings.LastIndex(message, "`: ")+1:] // behind the DSN
	var file *fs.PathError
	switch {
	case errors.As(err, &file):
		return fmt.Sprintf("cannot read %s: %v", file.Path, file.Err)
	case strings.Contains(message, "TLS"):
		return "sslmode, or a certificate or key that goes with it, cannot be used"
	case strings.Contains(message, "service"):
		return "the service is not in the service file (PGSERVICEFILE, or .pg_service.conf in the home directory)"
	case strings.Contains(message, "connect_timeout"):
		return "connect_timeout has to be a number of seconds"
	case strings.Contains(message, "target_session_attrs"):
		return "target_session_attrs has to be any, read-write, read-only, primary, standby or prefer-standby"
	}
	return "neither a URL nor keywords that Postgres takes: in a URL, percent-encode @ : / # ? % and spaces of the password, " +
		"between keywords, put it in single quotes, or leave it out and give it in PGPASSWORD or a passfile"
}
