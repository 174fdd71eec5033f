package cli

import (
	"io"
	"os"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"
)

// logger returns the logger of a command that runs on, which writes to w.
func (s *settings) logger(w io.Writer) zerolog.Logger {
	level, err := zerolog.ParseLevel(s.text("log-level"))
	if err != nil || level < zerolog.TraceLevel || level > zerolog.ErrorLevel {
		s.refuse("log-level", "%q is none of trace, debug, info, warn and error", s.text("log-level"))
	}
	file, ok := w.(*os.File)
	terminal := ok && isatty.IsTerminal(file.Fd())
	switch format := s.text("log-format"); {
	case format == "console" || format == "auto" && terminal:
		w = zerolog.ConsoleWriter{Out: w, NoColor: !terminal, TimeFormat: "15:04:05.000"}
	case format != "json" && format != "auto":
		s.refuse("log-format", "%q is none of auto, console and json", format)
	}
	return zerolog.New(w).Level(level).Hook(timestamp{})
}

// timestamp adds the time to each line, in milliseconds: zerolog's own has seconds, unless a global variable is changed.
type timestamp struct{}

// Run implements zerolog.Hook.
func (timestamp) Run(e *zerolog.Event, _ zerolog.Level, _ string) {
	e.Str(zerolog.TimestampFieldName, time.Now().UTC().Format("2006-01-02T15:04:05.000Z07:00"))
}
