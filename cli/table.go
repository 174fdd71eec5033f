package cli

import (
	"fmt"
	"strings"
	"unicode"
)

// parseTable reads the name of a table as SQL does: what is not quoted is folded to lower case. A name
// without a schema is one of schema public.
func parseTable(text string) (schema, table string, err error) {
	var names []string
	for rest := text; ; {
		var name string
		if name, rest, err = cutName(rest); err != nil {
			return "", "", err
		}
		names = append(names, name)
		if rest == "" {
			break
		}
		if rest[0] != '.' {
			return "", "", fmt.Errorf("%s is not schema.table: put a name that SQL would not take as it is in double quotes", text)
		}
		rest = rest[1:]
	}
	switch len(names) {
	case 1:
		return "public", names[0], nil
	case 2:
		return names[0], names[1], nil
	default:
		return "", "", fmt.Errorf("%s has %d parts, and schema.table two: put a name with a dot in double quotes", text, len(names))
	}
}

// cutName takes an identifier from the front of text.
func cutName(text string) (name, rest string, err error) {
	if quoted, ok := strings.CutPrefix(text, `"`); ok {
		var b strings.Builder
		for {
			part, after, closed := strings.Cut(quoted, `"`)
			if !closed {
				return "", "", fmt.Errorf("%s lacks a closing double quote", text)
			}
			b.WriteString(part)
			if !strings.HasPrefix(after, `"`) {
				name, rest = b.String(), after
				break
			}
			b.WriteByte('"') // which is doubled inside a name
			quoted = after[1:]
		}
	} else {
		end := strings.IndexFunc(text, func(r rune) bool {
			return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' && r != '$'
		})
		if end < 0 {
			end = len(text)
		}
		name, rest = strings.ToLower(text[:end]), text[end:]
	}
	switch {
	case name == "":
		return "", "", fmt.Errorf("%q is not schema.table: put a name that SQL would not take as it is in double quotes", text)
	case len(name) > maxName:
		return "", "", fmt.Errorf("a name has up to %d bytes, and %s has %d", maxName, name, len(name))
	}
	return name, rest, nil
}
