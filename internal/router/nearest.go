package router

// nearest gives the word of words that takes the fewest edits to become s.
func nearest(s string, words []string) string {
	best, least := "", -1
	for _, w := range words {
		if d := distance(s, w); least < 0 || d < least {
			best, least = w, d
		}
	}
	return best
}

// distance is Levenshtein's: inserts, deletes and changes of one byte.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
