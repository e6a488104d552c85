package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"gopkg.in/yaml.v3"
)

// A shapeError is what is wrong with a setting that is a list of mappings.
type shapeError struct{ error }

// Unwrap gives what is wrong.
func (e *shapeError) Unwrap() error { return e.error }

// readList reads a list of mappings and gives each to read.
func readList(text []byte, read func(*shape) error) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return &shapeError{fmt.Errorf("is not YAML: %s", plainYAML(err))}
	}
	if len(doc.Content) == 0 {
		return nil
	}
	list := doc.Content[0]
	if list.Kind != yaml.SequenceNode {
		return &shapeError{errors.New("want a list, such as [{name: public.outbox}]")}
	}
	for i, item := range list.Content {
		if item.Kind == yaml.AliasNode {
			item = item.Alias
		}
		if item.Kind != yaml.MappingNode {
			return &shapeError{fmt.Errorf("entry %d: want a mapping, such as {name: public.outbox}", i+1)}
		}
		s := &shape{given: map[string]*yaml.Node{}, known: map[string]bool{}}
		for k := 0; k+1 < len(item.Content); k += 2 {
			s.given[item.Content[k].Value] = item.Content[k+1]
		}
		if err := read(s); err != nil {
			return &shapeError{fmt.Errorf("entry %d: %w", i+1, err)}
		}
	}
	return nil
}

// A shape reads the keys of one mapping. Problems are gathered for done.
type shape struct {
	given    map[string]*yaml.Node
	known    map[string]bool
	problems []error
}

func (s *shape) take(key string, kind yaml.Kind) *yaml.Node {
	s.known[key] = true
	v := s.given[key]
	if v != nil && v.Kind == yaml.AliasNode {
		v = v.Alias
	}
	if v == nil || v.Kind == yaml.ScalarNode && kind != yaml.ScalarNode && v.Value == "" {
		return nil
	}
	if v.Kind != kind {
		s.problems = append(s.problems, fmt.Errorf("%s: want a %s", key, map[yaml.Kind]string{
			yaml.ScalarNode: "plain value", yaml.SequenceNode: "list", yaml.MappingNode: "mapping",
		}[kind]))
		return nil
	}
	return v
}

func (s *shape) text(key string, to *string) {
	if v := s.take(key, yaml.ScalarNode); v != nil && v.Tag != "!!null" {
		*to = v.Value
	}
}

func (s *shape) truth(key string, to *bool) {
	var text string
	if s.text(key, &text); text == "" {
		return
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		s.problems = append(s.problems, fmt.Errorf("%s: use true or false, not %q", key, text))
	}
	*to = b
}

func (s *shape) number(key string, to *int) {
	var text string
	if s.text(key, &text); text == "" {
		return
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		s.problems = append(s.problems, fmt.Errorf("%s: use a whole number, not %q", key, text))
	}
	*to = n
}

func (s *shape) list(key string, to *[]string) {
	v := s.take(key, yaml.SequenceNode)
	if v == nil {
		return
	}
	for _, item := range v.Content {
		if item.Kind != yaml.ScalarNode {
			s.problems = append(s.problems, fmt.Errorf("%s: use plain values in the list", key))
			return
		}
		*to = append(*to, item.Value)
	}
}

func (s *shape) texts(key string, to map[string]string) {
	v := s.take(key, yaml.MappingNode)
	if v == nil {
		return
	}
	for i := 0; i+1 < len(v.Content); i += 2 {
		if v.Content[i+1].Kind != yaml.ScalarNode {
			s.problems = append(s.problems, fmt.Errorf("%s.%s: use a plain value", key, v.Content[i].Value))
			continue
		}
		to[v.Content[i].Value] = v.Content[i+1].Value
		if v.Content[i+1].Tag == "!!null" {
			to[v.Content[i].Value] = ""
		}
	}
}

// done gives all problems, unknown keys among them.
func (s *shape) done() error {
	for _, key := range slices.Sorted(maps.Keys(s.given)) {
		if !s.known[key] {
			s.problems = append(s.problems, fmt.Errorf("%s is not known; the nearest is %s", key, nearest(key, keys(s.known))))
		}
	}
	return errors.Join(s.problems...)
}

func keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
