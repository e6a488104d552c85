package router

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/walrelay/walrelay/envelope"
)

// manyHeaders is the number of headers from which names are compared through a
// map: one row must not cost the square of its thousands of names.
const manyHeaders = 32

// rowHeaders adds the headers of the row's own column, a JSON object. Scalars
// are their text with every digit, null is no header, and an object or array
// is its JSON without blanks. It reports whether the row was not refused.
func (r *Router) rowHeaders(raw []byte, out *Routed) bool {
	if string(raw) == "{}" {
		return true
	}
	table, column := r.values.plan.table.name, r.values.plan.table.cols.Headers
	if !json.Valid(raw) {
		refuse(out, ReasonInvalidHeaders, "column %q of table %s is not JSON; write an object of names and values", column, table)
		return false
	}
	raw = bytes.TrimLeft(raw, jsonBlanks)
	if raw[0] != '{' {
		refuse(out, ReasonInvalidHeaders, "column %q of table %s is JSON but no object; write an object of names and values", column, table)
		return false
	}
	w := walker{json: raw[1:]}
	first := len(r.headers)
	size := headerBlock(r.headers)
	var seen map[string]struct{}
	for w.next() {
		name, ok := r.unquote(w.string())
		value, has, ok2 := r.value(&w)
		if !ok || !ok2 {
			refuse(out, ReasonInvalidHeaders, "column %q of table %s has half a surrogate pair in a string; write the character itself", column, table)
			return false
		}
		if !has {
			continue
		}
		if !r.acceptable(name, value, first, out) {
			return false
		}
		if r.repeated(name, first, &seen) {
			refuse(out, ReasonDuplicateHeader, "header %s in table %s comes twice (case does not matter); write it once", clip(name), table)
			return false
		}
		r.add(name, value)
		// A row can hold a gigabyte of headers: stop where it is too much.
		size += len(name) + len(value) + headerBytes
		if size > maxHeaderBlock {
			refuse(out, ReasonHeadersTooLarge, "headers of table %s, column %q, take more than the server's %d bytes; write fewer or shorter headers",
				table, column, maxHeaderBlock)
			return false
		}
	}
	return true
}

// acceptable says whether a row may have the header. The row's own headers
// begin at first.
func (r *Router) acceptable(name, value string, first int, out *Routed) bool {
	table := r.values.plan.table.name
	switch {
	case envelope.Reserved(name), r.cfg.CloudEvents && hasPrefixFold(name, cePrefix):
		refuse(out, ReasonReservedHeader, "header %s in table %s: the name is reserved (Nats-*, Walrelay-*, Status, Description, and ce-* with CloudEvents); use another name",
			clip(name), table)
		return false
	case !validName(name):
		refuse(out, ReasonInvalidHeader, "header %s in table %s: a name is one or more printable ASCII characters without blanks and without any of %s; use another name",
			clip(name), table, forbiddenInName)
		return false
	case !envelope.Verbatim(value):
		refuse(out, ReasonInvalidHeader, "header %s in table %s: its value has a control character or a blank at an end, which would be changed on the way; encode the value",
			clip(name), table)
		return false
	}
	for i := range first {
		if strings.EqualFold(r.headers[i].Name, name) {
			refuse(out, ReasonReservedHeader, "header %s in table %s is set by the route or by a mapped column; use another name or take it from there",
				clip(name), table)
			return false
		}
	}
	return true
}

// repeated says whether the row's own headers, from first on, have a name
// already.
func (r *Router) repeated(name string, first int, seen *map[string]struct{}) bool {
	own := r.headers[first:]
	if len(own) < manyHeaders {
		return slices.ContainsFunc(own, func(h envelope.Header) bool { return strings.EqualFold(h.Name, name) })
	}
	if *seen == nil {
		*seen = make(map[string]struct{}, 2*manyHeaders)
		for i := range own {
			(*seen)[strings.ToLower(own[i].Name)] = struct{}{}
		}
	}
	name = strings.ToLower(name)
	_, ok := (*seen)[name]
	(*seen)[name] = struct{}{}
	return ok
}

// forbiddenInName are the printable characters that nats.go refuses in a
// header's name.
const forbiddenInName = "\"(),/:;<=>?@[\\]{}"

func validName(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || strings.IndexByte(forbiddenInName, c) >= 0 {
			return false
		}
	}
	return s != ""
}
