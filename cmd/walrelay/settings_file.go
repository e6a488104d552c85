package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"gopkg.in/yaml.v3"
)

// configFile is the file that flags or environment name, "" for none.
func (s *settings) configFile(env map[string]given) string {
	if g, ok := s.given["config"]; ok {
		return g.value
	}
	return env["config"].value
}

// scanFile reads the file of settings: a flat mapping from the flags' names,
// with dashes or underscores, to plain values.
func (s *settings) scanFile(path string, env map[string]given) {
	from := s.where("config")
	if _, ok := s.given["config"]; !ok {
		from = env["config"].where
	}
	text, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		s.problem("%s: %v", from, err)
		return
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		s.problem("%s: %s is not YAML: %s", from, path, plainYAML(err))
		return
	}
	if len(doc.Content) == 0 {
		return // empty, or comments alone
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		s.problem("%s: %s: want lines such as nats: nats://127.0.0.1:4222", from, path)
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		s.entry(filepath.Base(path), root.Content[i], root.Content[i+1], seen)
	}
}

func (s *settings) entry(file string, k, v *yaml.Node, seen map[string]int) {
	name := strings.ReplaceAll(k.Value, "_", "-")
	where := fmt.Sprintf("%s (%s:%d)", k.Value, file, k.Line)
	if line, twice := seen[name]; twice {
		s.problem("%s: is there already in line %d", where, line)
		return
	}
	seen[name] = k.Line
	if s.known[name] == nil {
		s.unknown(where, name, names(s.known), key)
		return
	}
	if name == "config" {
		s.problem("%s: a file cannot name another one", where)
		return
	}
	value, err := plainValue(v)
	if s.known[name].Tag.Get("shape") == "list" && v.Kind != yaml.ScalarNode {
		var text []byte
		text, err = jsonOf(v)
		value = string(text)
	}
	switch {
	case err != nil:
		s.problem("%s: %v", where, err)
	case value != "":
		s.take(name, given{value: value, origin: fromFile, where: where})
	}
}

// plainValue gives a value as it is written: YAML's own reading of numbers and
// dates would change it. A list is what commas separate.
func plainValue(v *yaml.Node) (string, error) {
	switch {
	case v.Kind == yaml.AliasNode && v.Alias != nil:
		return plainValue(v.Alias)
	case v.Kind == yaml.ScalarNode && v.Tag == "!!null":
		return "", nil
	case v.Kind == yaml.ScalarNode:
		return v.Value, nil
	case v.Kind == yaml.SequenceNode:
		parts := make([]string, 0, len(v.Content))
		for _, item := range v.Content {
			if item.Kind != yaml.ScalarNode {
				return "", errors.New("use plain values in the list")
			}
			parts = append(parts, item.Value)
		}
		return strings.Join(parts, ","), nil
	}
	return "", errors.New("use a plain value")
}

var quotedPart = regexp.MustCompile("['\"`].*['\"`]")

// plainYAML leaves out what a message of the YAML reader repeats of the file,
// which may be a secret.
func plainYAML(err error) string {
	return quotedPart.ReplaceAllString(strings.TrimPrefix(err.Error(), "yaml: "), "(not shown)")
}
