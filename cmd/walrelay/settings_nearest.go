package main

// nearest gives the word of words that takes the fewest edits to become s.
func nearest(s string, words []string) string {
	best, least := "", -1
	for _, w := range words {
		if d := edits(s, w); least < 0 || d < least || d == least && w < best {
			best, least = w, d
		}
	}
	return best
}

// edits is Levenshtein's distance with swapped neighbours counted as one edit,
// the commonest slip of a typing hand.
func edits(a, b string) int {
	before, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			change := row[j]
			if a[i] != b[j] {
				change++
			}
			next[j+1] = min(change, row[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}
