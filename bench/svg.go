package main

import (
	"fmt"
	"html"
	"strings"
)

// The plot's measures, in its own units.
const (
	plotWidth  = 860
	labelWidth = 210
	barHeight  = 16
	barGap     = 4
	caseGap    = 34
	barsWidth  = plotWidth - labelWidth - 90
)

// plot draws the rates of all cases as bars, each with its lowest and highest.
// The bars of one case share a scale: only their ratios mean something.
func plot(cases []outcome) string {
	var b strings.Builder
	y := 10
	for _, c := range cases {
		y += caseGap
		most := 0.0
		for _, s := range c.Candidates {
			most = max(most, s.Highest)
		}
		fmt.Fprintf(&b, `<text x="4" y="%d" class="case">%s</text>`+"\n", y-8, html.EscapeString(c.Case.Name+": "+c.Case.String()))
		for _, s := range c.Candidates {
			class := "other"
			if s.Name == relay {
				class = "relay"
			}
			at := func(rate float64) float64 { return labelWidth + barsWidth*rate/most }
			middle := y + barHeight/2
			fmt.Fprintf(&b, `<text x="%d" y="%d" class="label">%s</text>`, labelWidth-8, y+barHeight-4, html.EscapeString(s.Name))
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" class="%s"/>`, labelWidth, y, at(s.Rate)-labelWidth, barHeight, class)
			fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" class="spread"/>`, at(s.Lowest), middle, at(s.Highest), middle)
			fmt.Fprintf(&b, `<text x="%.1f" y="%d">%.0f/s</text>`+"\n", at(s.Highest)+6, y+barHeight-4, s.Rate)
			y += barHeight + barGap
		}
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="Events a second by case and candidate">
<style>text{font:12px sans-serif;fill:#333}.case{font-weight:bold}.label{text-anchor:end}.relay{fill:#2a7}.other{fill:#9bc}.spread{stroke:#333;stroke-width:1.5}</style>
<rect width="100%%" height="100%%" fill="#fff"/>
%s</svg>
`, plotWidth, y+20, b.String())
}
