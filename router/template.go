package router

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	texttemplate "text/template"
	"text/template/parse"

	"github.com/pombo-cdc/pombo/decoder"
)

// template names a topic. Of the language of text/template it takes what such a name needs: the
// fields of an event, if and else, comparisons and the functions that change the spelling.
// Without loops, variables and formatting, a template costs no more time and memory than its
// length and its values are worth.
type template struct {
	parsed  *texttemplate.Template
	columns []decoder.Column // whose values the template reads
}

// fields is an event as a template sees it. SQL NULL is empty. The payload is not there: a topic
// that depends on it would be worked out for each event anew.
type fields struct {
	ID, AggregateType, AggregateID, EventType string
}

func eventFields(e decoder.Event) fields {
	return fields{
		ID:            string(e.Column(decoder.ID)),
		AggregateType: string(e.Column(decoder.AggregateType)),
		AggregateID:   string(e.Column(decoder.AggregateID)),
		EventType:     string(e.Column(decoder.EventType)),
	}
}

// columnOf returns the column behind a field of fields.
func columnOf(field string) (decoder.Column, bool) {
	switch field {
	case "ID":
		return decoder.ID, true
	case "AggregateType":
		return decoder.AggregateType, true
	case "AggregateID":
		return decoder.AggregateID, true
	case "EventType":
		return decoder.EventType, true
	default:
		return 0, false
	}
}

func functions() texttemplate.FuncMap {
	return texttemplate.FuncMap{
		"lower":  strings.ToLower,
		"upper":  strings.ToUpper,
		"kebab":  kebab,
		"snake":  snake,
		"plural": plural,
	}
}

// offered lists the functions that a template may call: those above and the ones of text/template
// that make conditions. None of them makes much of little, as printf and js can.
func offered() []string {
	return append(slices.Sorted(maps.Keys(functions())), "eq", "ne", "and", "or", "not")
}

// parseTemplate compiles text. What is wrong with it is said here, as far as it does not depend on
// the values, and not at the first event.
func parseTemplate(text string) (*template, error) {
	t := new(template)
	if err := t.parse(text); err != nil {
		return nil, fmt.Errorf("topic template %q: %w", text, err)
	}
	return t, nil
}

func (t *template) parse(text string) error {
	tree := parse.New("topic")
	tree.Mode = parse.SkipFuncCheck // offered does that
	defined := make(map[string]*parse.Tree)
	if _, err := tree.Parse(text, "", "", defined); err != nil {
		return bare(err)
	}
	if len(defined) > 1 {
		return errors.New("define is not offered")
	}
	if err := t.check(tree.Root); err != nil {
		return err
	}
	parsed, err := texttemplate.New("topic").Funcs(functions()).AddParseTree("topic", tree)
	if err != nil {
		return err
	}
	t.parsed = parsed
	return t.try()
}

// try finds wrong arguments of functions, and a topic that is illegal for every event.
func (t *template) try() error {
	if _, err := t.execute(fields{}); err != nil {
		return err
	}
	topic, err := t.execute(fields{ID: "1", AggregateType: "Order", AggregateID: "2", EventType: "OrderCreated"})
	if err == nil && len(t.columns) == 0 {
		err = checkTopic(topic)
	}
	return err
}

// check walks the template, refuses what it may not have and notes the columns it reads.
func (t *template) check(n parse.Node) error {
	switch n := n.(type) {
	case *parse.ListNode:
		return checkAll(t, n.Nodes)
	case *parse.TextNode:
		return checkCharacters(string(n.Text))
	case *parse.ActionNode:
		return t.check(n.Pipe)
	case *parse.IfNode:
		if n.ElseList == nil {
			return checkAll(t, []parse.Node{n.Pipe, n.List})
		}
		return checkAll(t, []parse.Node{n.Pipe, n.List, n.ElseList})
	case *parse.PipeNode:
		if len(n.Decl) > 0 {
			return fmt.Errorf("variable %s is not offered", n.Decl[0])
		}
		return checkAll(t, n.Cmds)
	case *parse.CommandNode:
		return checkAll(t, n.Args)
	case *parse.StringNode:
		return nil
	case *parse.IdentifierNode:
		if !slices.Contains(offered(), n.Ident) {
			return fmt.Errorf("function %s is not offered, only %s", n.Ident, strings.Join(offered(), ", "))
		}
		return nil
	case *parse.FieldNode:
		return t.checkField(n)
	default:
		return fmt.Errorf("%.40q is not offered", n)
	}
}

// checkAll checks nodes and returns the first mistake.
func checkAll[N parse.Node](t *template, nodes []N) error {
	for _, n := range nodes {
		if err := t.check(n); err != nil {
			return err
		}
	}
	return nil
}

func (t *template) checkField(n *parse.FieldNode) error {
	c, ok := columnOf(strings.Join(n.Ident, "."))
	if !ok {
		return fmt.Errorf("an event has no field %s, only .ID, .AggregateType, .AggregateID and .EventType", n)
	}
	if !t.reads(c) {
		t.columns = append(t.columns, c)
	}
	return nil
}

// reads reports whether the topic depends on a column.
func (t *template) reads(c decoder.Column) bool { return slices.Contains(t.columns, c) }

// execute returns the topic of an event, not checked. It stops at the length that Kafka takes.
func (t *template) execute(f fields) (string, error) {
	var w limitedWriter
	err := t.parsed.Execute(&w, f)
	if err != nil && !errors.Is(err, errLongTopic) {
		err = bare(err)
	}
	return string(w.topic), err
}

// limitedWriter collects a topic and refuses what is longer than one.
type limitedWriter struct{ topic []byte }

func (w *limitedWriter) Write(p []byte) (int, error) {
	if room := maxTopic - len(w.topic); len(p) > room {
		w.topic = append(w.topic, p[:room]...)
		return room, errLongTopic
	}
	w.topic = append(w.topic, p...)
	return len(p), nil
}

// bare takes "template: topic:1:2: " off an error of text/template: the template stands beside it.
func bare(err error) error {
	_, located, _ := strings.Cut(err.Error(), ": ")
	_, reason, _ := strings.Cut(located, ": ")
	return errors.New(strings.TrimPrefix(reason, `executing "topic" `))
}
