package walrelay

import (
	"context"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/walrelay/walrelay/internal/router"
)

// I7: a set that memory does not hold gives the same answers as one that it does.
func TestWhatIsLookedForInPortionsIsFoundAsInOne(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.Custom(func(t *rapid.T) string { return fmt.Sprint(rapid.IntRange(0, 40).Draw(t, "id")) })
		letter := rapid.Custom(func(t *rapid.T) keyed { return keyOf("a", id.Draw(t, "letter")) })
		message := rapid.Custom(func(t *rapid.T) keyed { return keyOf(id.Draw(t, "message")) })
		set := append(rapid.SliceOf(message).Draw(t, "messages"), rapid.SliceOf(letter).Draw(t, "letters")...)
		var events []router.Event
		for _, id := range rapid.SliceOf(id).Draw(t, "rows") {
			events = append(events, router.Event{Table: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "table"), ID: id})
		}
		answers := func(most int) []bool {
			s, err := newSeen(t.Context(), most, func(_ context.Context, note func(keyed) error) error {
				for _, k := range set {
					if err := note(k); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			has, _, err := s.among(t.Context(), func(ask func(*router.Event) error) error {
				for i := range events {
					if err := ask(&events[i]); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			var all []bool
			for i := range events {
				all = append(all, has(&events[i]))
			}
			return all
		}
		whole := answers(1000)
		for _, most := range []int{1, 2, 3, 7} {
			if got := answers(most); fmt.Sprint(got) != fmt.Sprint(whole) {
				t.Fatalf("in portions of %d: %v, want %v", most, got, whole)
			}
		}
	})
}
