package walrelay

import (
	"fmt"
	"strings"

	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/router"
)

// lookAtSubjects says whether the stream takes what the routes can make, and
// whether the user may publish it.
func (s *streamDoctor) lookAtSubjects(to *router.Router, permissions publish.Permissions, told bool) {
	seen := map[string]bool{}
	for _, p := range to.Patterns() {
		filter := p.Filter()
		if p.Stream != s.Name || seen[filter] {
			continue
		}
		seen[filter] = true
		if s.seen {
			s.lookAtCoverage(p, filter)
		}
		name := "right to publish " + filter
		switch allowed := mayPublish(p, permissions.Publish); {
		case !told:
			s.add(VerdictUnknown, name, "not told by the server", "it cannot be found out without publishing; walrelay run names a subject that it may not publish", "")
		case allowed == router.CoversAll:
			s.ok(name, "granted", "the server drops what a user may not publish, without an answer")
		case allowed == router.CoversSome:
			s.warn(name, "granted in part", fmt.Sprintf("the user may publish some subjects of the route and not others (%s)", permissionText(permissions.Publish)),
				fmt.Sprintf("grant publish on %q to the relay's NATS user", filter))
		default:
			s.add(VerdictFail, name, "not granted", fmt.Sprintf("not permitted to publish %q", filter), "grant it to the relay's NATS user")
		}
	}
}

func (s *streamDoctor) lookAtCoverage(p router.Pattern, filter string) {
	name := "subjects " + filter
	has := strings.Join(s.info.Facts.Subjects, ", ")
	fix := fmt.Sprintf("nats stream edit %s --subjects %q, or correct the route's subject", s.Name, strings.Join(append(append([]string{}, s.info.Facts.Subjects...), filter), ","))
	switch p.Covered(s.info.Facts.Subjects) {
	case router.CoversAll:
		s.ok(name, "covered by "+has, "an event on a subject that the stream does not take is unrouted")
	case router.CoversSome:
		s.add(VerdictUnknown, name, "covered in part by "+has, "whether the stream takes an event depends on its row; one that it does not take is unrouted", fix)
	case router.CoversNone:
		s.add(VerdictFail, name, "not covered by "+has, fmt.Sprintf("stream %q does not cover subject %q", s.Name, filter), fix)
	}
}

// mayPublish compares a route with a user's permissions.
func mayPublish(p router.Pattern, may publish.Permission) router.Coverage {
	allowed := router.CoversAll
	if len(may.Allow) > 0 {
		allowed = p.Covered(may.Allow)
	}
	switch p.Covered(may.Deny) {
	case router.CoversAll:
		return router.CoversNone
	case router.CoversSome:
		return min(allowed, router.CoversSome)
	case router.CoversNone:
	}
	return allowed
}

func permissionText(p publish.Permission) string {
	return fmt.Sprintf("allowed: %s; denied: %s", or(strings.Join(p.Allow, ", "), "all"), or(strings.Join(p.Deny, ", "), "none"))
}
