package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"
)

// readFile returns what a YAML file says about flags. A key that belongs to another command is fine, so that one file
// serves them all; one that belongs to none is a mistake, and so is one that stands there twice. (The YAML
// source of urfave's altsrc sees neither.)
func (s *settings) readFile(path string) map[string]value {
	file := filepath.Base(path)
	text, err := os.ReadFile(path)
	if err != nil {
		var why *fs.PathError
		if errors.As(err, &why) {
			err = why.Err
		}
		s.refuse("config", "read %s: %w", path, err)
		return nil
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		s.refuse("config", "read %s: %w", path, err)
		return nil
	}
	if document.IsZero() { // nothing but comments
		return nil
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		s.refuse("config", "%s has no settings: write a line `flag: value` for each", file)
		return nil
	}
	known := fileKeys()
	values := make(map[string]value)
	for i := 0; i < len(root.Content); i += 2 {
		key, node := root.Content[i], root.Content[i+1]
		origin := fmt.Sprintf("%s (line %d of %s)", key.Value, key.Line, file)
		switch _, twice := values[key.Value]; {
		case !known[key.Value]:
			s.mistake(fmt.Errorf("unknown key %s: keys are called as the flags that `pombo run --help` lists", origin))
		case twice:
			s.mistake(fmt.Errorf("%s is given twice", origin))
		default:
			texts, ok := scalars(node)
			if !ok {
				s.mistake(fmt.Errorf("%s has to be a value or a list of them", origin))
			}
			values[key.Value] = value{texts, origin}
		}
	}
	return values
}

// fileKeys are the flags of all commands, but the one that names the file.
func fileKeys() map[string]bool {
	keys := make(map[string]bool)
	for _, c := range new(app).commands() {
		for _, c := range append(c.Subcommands, c) {
			for _, f := range c.Flags {
				keys[f.Names()[0]] = true
			}
		}
	}
	delete(keys, "config")
	return keys
}

// scalars returns a value, or the values of a list, as they are written.
func scalars(node *yaml.Node) (texts []string, ok bool) {
	for node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	switch {
	case node.Kind == yaml.ScalarNode && node.Tag == "!!null":
		return []string{""}, true
	case node.Kind == yaml.ScalarNode:
		return []string{node.Value}, true
	case node.Kind != yaml.SequenceNode:
		return nil, false
	case len(node.Content) == 0:
		return []string{""}, true
	}
	for _, item := range node.Content {
		if item.Kind != yaml.ScalarNode {
			return nil, false
		}
		texts = append(texts, item.Value)
	}
	return texts, true
}
