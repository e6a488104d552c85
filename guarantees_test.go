package walrelay_test

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// rulesOf gives the rules that a comment names: I3, or all of I1-I5.
func rulesOf(comment string) map[string]bool {
	rules := make(map[string]bool)
	for _, m := range regexp.MustCompile(`\bI(\d+)(?:-I(\d+))?\b`).FindAllStringSubmatch(comment, -1) {
		first, _ := strconv.Atoi(m[1]) // digits
		last, err := strconv.Atoi(m[2])
		for n := first; n == first || err == nil && n <= last; n++ {
			rules[fmt.Sprintf("I%d", n)] = true
		}
	}
	return rules
}

// testsOfTheTree gives the name of each test with the rules that its comment
// names.
func testsOfTheTree(t *testing.T) map[string]map[string]bool {
	t.Helper()
	tests := make(map[string]map[string]bool)
	declaration := regexp.MustCompile(`^func (Test\w+)\(`)
	for _, name := range files(t) {
		if !strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var comment []byte
		for line := range bytes.Lines(text) {
			if m := declaration.FindSubmatch(line); m != nil {
				tests[string(m[1])] = rulesOf(string(comment))
			}
			if !bytes.HasPrefix(line, []byte("//")) {
				comment = nil
				continue
			}
			comment = append(comment, line...)
		}
	}
	return tests
}

// What is promised has tests that would go red, and they are there.
func TestGuaranteesNameTheTestsThatWouldGoRed(t *testing.T) {
	t.Parallel()
	const document = "docs/guarantees.md"
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	tests := testsOfTheTree(t)
	rule := regexp.MustCompile(`^(I\d+) `)
	named := regexp.MustCompile("`(Test\\w+)`")
	shown := make(map[string]int)
	for section := range strings.SplitSeq(string(text), "\n## ") {
		of := rule.FindStringSubmatch(section)
		for _, m := range named.FindAllStringSubmatch(section, -1) {
			rules, there := tests[m[1]]
			switch {
			case !there:
				t.Errorf("%s names %s, which is no test", document, m[1])
			case of != nil && !rules[of[1]]:
				t.Errorf("%s names %s for %s; the comment of that test does not name the rule", document, m[1], of[1])
			case of != nil:
				shown[of[1]]++
			}
		}
	}
	for n := 1; n <= 10; n++ {
		if name := fmt.Sprintf("I%d", n); shown[name] < 3 {
			t.Errorf("%s names %d tests for %s, want at least 3", document, shown[name], name)
		}
	}
}
