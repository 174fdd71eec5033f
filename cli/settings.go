package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	urfave "github.com/urfave/cli/v2"
)

// settings are the values of a command's flags, and every mistake that has been found so far:
// in how they are given, and by the methods that make a Config of them.
type settings struct {
	command  string
	defaults map[string]string
	values   map[string]value
	mistakes []error
}

// value is what the source that wins says about a flag.
type value struct {
	texts  []string // none if it is empty
	origin string   // how to call it in a message
}

// readSettings asks the command line, the environment and the file. Its error is flag.ErrHelp or nil.
func readSettings(command string, flags []urfave.Flag, args []string) (*settings, error) {
	s := &settings{command: command, defaults: make(map[string]string), values: make(map[string]value)}
	given, err := s.readArguments(flags, args)
	if err != nil {
		return nil, err
	}
	for _, f := range flags {
		name := f.Names()[0]
		if texts := given[name]; texts != nil {
			s.values[name] = value{texts, "--" + name}
		} else if text, ok := os.LookupEnv(variable(name)); ok {
			s.values[name] = value{[]string{text}, variable(name)}
		}
	}
	if path := s.text("config"); path != "" {
		for name, v := range s.readFile(path) {
			if _, given := s.values[name]; !given {
				s.values[name] = v
			}
		}
	}
	for _, f := range flags {
		s.checkShape(f)
	}
	return s, nil
}

// How the errors of package flag begin.
const (
	unknownFlag = "flag provided but not defined: -"
	lacksValue  = "flag needs an argument: -"
	badSyntax   = "bad flag syntax: "
)

// readArguments returns the values of the flags on the command line: of one that takes a single value the
// last, so that a script's can be overridden. Package flag stops at the first mistake or stray argument;
// this takes note of it and goes on behind it.
func (s *settings) readArguments(flags []urfave.Flag, args []string) (map[string][]string, error) {
	given := make(map[string][]string)
	set := flag.NewFlagSet(s.command, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	for _, f := range flags {
		name := f.Names()[0]
		_, repeatable := f.(listFlag)
		take := func(text string) error {
			if !repeatable {
				given[name] = nil
			}
			given[name] = append(given[name], text)
			return nil
		}
		if _, ok := f.(*urfave.BoolFlag); ok {
			set.BoolFunc(name, "", take)
		} else {
			set.Func(name, "", take)
		}
	}
	for {
		err := set.Parse(args)
		args = set.Args()
		switch {
		case errors.Is(err, flag.ErrHelp):
			return nil, err
		case err != nil:
			s.mistake(s.flagError(flags, err))
			// What follows an unknown flag is its value, and what is no flag has not been passed yet.
			if len(args) > 0 && (!strings.HasPrefix(args[0], "-") || strings.HasPrefix(err.Error(), badSyntax)) {
				args = args[1:]
			}
		case len(args) > 0:
			s.mistake(fmt.Errorf("unexpected argument %s: `pombo %s` takes only flags", shown(args[0]), s.command))
			args = args[1:]
		default:
			return given, nil
		}
	}
}

// flagError turns an error of package flag into a sentence with a way out.
func (s *settings) flagError(flags []urfave.Flag, err error) error {
	if name, ok := strings.CutPrefix(err.Error(), unknownFlag); ok {
		hint := ""
		if similar := urfave.SuggestFlag(flags, name, true); strings.HasPrefix(similar, "--"+name[:1]) {
			hint = fmt.Sprintf("did you mean %s? ", similar)
		}
		return fmt.Errorf("unknown flag --%s: %s`pombo %s --help` lists all", name, hint, s.command)
	}
	if name, ok := strings.CutPrefix(err.Error(), lacksValue); ok {
		return fmt.Errorf("--%s lacks its value", name)
	}
	return fmt.Errorf("argument %s is not a flag", shown(strings.TrimPrefix(err.Error(), badSyntax)))
}

// shown quotes an argument for a message, unless it looks as if a password could be in it.
func shown(argument string) string {
	if strings.ContainsAny(argument, ":@=/ ") {
		return "(not shown, as there may be a password in it)"
	}
	return fmt.Sprintf("%q", argument)
}

// checkShape looks at how a flag is given, whatever its values mean.
func (s *settings) checkShape(f urfave.Flag) {
	name := f.Names()[0]
	if f, ok := f.(*urfave.StringFlag); ok {
		s.defaults[name] = f.Value
	}
	v, ok := s.values[name]
	if !ok {
		return
	}
	_, repeatable := f.(listFlag)
	switch {
	case slices.ContainsFunc(v.texts, func(text string) bool { return strings.Trim(text, ", \t\n") == "" }):
		s.mistake(fmt.Errorf("%s is empty: give it a value, or leave it out", v.origin))
		s.values[name] = value{origin: v.origin}
	case len(v.texts) > 1 && !repeatable:
		s.mistake(fmt.Errorf("%s has %d values, and takes one", v.origin, len(v.texts)))
	}
}

func (s *settings) mistake(err error) { s.mistakes = append(s.mistakes, err) }

// refuse notes a mistake in the value of a flag.
func (s *settings) refuse(name, format string, args ...any) {
	s.mistake(fmt.Errorf("%s: %w", s.origin(name), fmt.Errorf(format, args...)))
}

// origin says where the value of a flag comes from.
func (s *settings) origin(name string) string {
	if v, ok := s.values[name]; ok {
		return v.origin
	}
	return "--" + name
}

// err returns the mistakes, if any.
func (s *settings) err() error {
	if len(s.mistakes) == 0 {
		return nil
	}
	return &usageError{s.mistakes}
}

// has reports whether a flag is given by any of the sources.
func (s *settings) has(name string) bool {
	_, ok := s.values[name]
	return ok
}

// text returns the value of a flag, or its default.
func (s *settings) text(name string) string {
	if texts := s.values[name].texts; len(texts) > 0 {
		return strings.TrimSpace(texts[0])
	}
	return s.defaults[name]
}

// texts returns the values of a flag that can be repeated.
func (s *settings) texts(name string) []string {
	var all []string
	for _, text := range s.values[name].texts {
		for _, part := range strings.Split(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				all = append(all, part)
			}
		}
	}
	return all
}

// on returns the value of a flag that is on or off.
func (s *settings) on(name string) bool {
	switch text := s.text(name); strings.ToLower(text) {
	case "on", "true", "yes", "1":
		return true
	case "off", "false", "no", "0", "":
		return false
	default:
		s.refuse(name, "%q is neither on nor off", text)
		return false
	}
}

// pair is a value of the form key=value.
type pair struct{ key, value string }

// pairs returns the values of a flag that maps keys to values, in their order.
func (s *settings) pairs(name, form string) []pair {
	var all []pair
	seen := make(map[string]bool)
	for _, text := range s.texts(name) {
		key, value, _ := strings.Cut(text, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case key == "" || value == "":
			s.refuse(name, "%q is not of the form %s", text, form)
		case seen[key]:
			s.refuse(name, "%q is given twice", key)
		default:
			seen[key] = true
			all = append(all, pair{key, value})
		}
	}
	return all
}
