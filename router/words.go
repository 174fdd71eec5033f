package router

import (
	"strings"
	"unicode"
)

// kebab turns "OrderLine" into "order-line" and "HTTPServer" into "http-server".
func kebab(name string) string { return separate(name, '-') }

// snake turns "OrderLine" into "order_line" and "HTTPServer" into "http_server".
func snake(name string) string { return separate(name, '_') }

// separate puts name in lower case, with separator between words. A word ends where the case says
// so and at blanks, hyphens and underscores. Other characters, such as the dots of a hierarchy,
// stay as they are.
func separate(name string, separator rune) string {
	var b strings.Builder
	letters := []rune(name)
	gap := false // a blank, hyphen or underscore was left out
	last := '.'  // rune written
	for i, c := range letters {
		if c == '-' || c == '_' || unicode.IsSpace(c) {
			gap = true
			continue
		}
		if (gap || startsWord(letters, i)) && inWord(last) && inWord(c) {
			b.WriteRune(separator)
		}
		b.WriteRune(unicode.ToLower(c))
		gap, last = false, c
	}
	return b.String()
}

func inWord(c rune) bool { return unicode.IsLetter(c) || unicode.IsDigit(c) }

// startsWord reports whether letters[i] is a capital after a small letter or a digit ("orderLine"),
// or the last of several before a small letter ("HTTPServer").
func startsWord(letters []rune, i int) bool {
	if i == 0 || !unicode.IsUpper(letters[i]) {
		return false
	}
	if before := letters[i-1]; !unicode.IsUpper(before) {
		return true
	}
	return i+1 < len(letters) && unicode.IsLower(letters[i+1])
}

// plural gives name the ending of a regular English plural: "Orders", "Categories", "Boxes",
// "Buses". It is written in capitals after capitals. Irregular nouns want a route.
func plural(name string) string {
	if name == "" {
		return ""
	}
	lower := strings.ToLower(name)
	stem, ending := name, "s"
	switch {
	case endsIn(lower, "s", "x", "z", "ch", "sh"):
		ending = "es"
	case strings.HasSuffix(lower, "y") && len(lower) > 1 && !endsIn(lower, "ay", "ey", "iy", "oy", "uy"):
		stem, ending = name[:len(name)-1], "ies"
	}
	if name == strings.ToUpper(name) && name != lower {
		ending = strings.ToUpper(ending)
	}
	return stem + ending
}

func endsIn(s string, endings ...string) bool {
	for _, ending := range endings {
		if strings.HasSuffix(s, ending) {
			return true
		}
	}
	return false
}
