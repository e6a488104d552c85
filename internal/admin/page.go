package admin

import (
	"crypto/sha256"
	_ "embed" // the parts of the page
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
)

// The parts of the status page. They are one document when it is served: nothing
// is loaded from anywhere.
var (
	//go:embed page/index.html
	pageDocument string
	//go:embed page/style.css
	pageStyle string
	//go:embed page/words.js
	pageWords string
	//go:embed page/picture.js
	pagePicture string
	//go:embed page/charts.js
	pageCharts string
	//go:embed page/app.js
	pageApp string
)

// A page is the document with the policy that lets it do what it does and no
// more: its own style and script, by their hashes, and questions to where it
// came from.
type page struct {
	document []byte
	policy   string
}

func newPage() *page {
	script := "'use strict';\n(() => {\n" + pageWords + pagePicture + pageCharts + pageApp + "})();\n"
	document := strings.NewReplacer(
		"<style></style>", "<style>"+pageStyle+"</style>", "<script></script>", "<script>"+script+"</script>",
	).Replace(pageDocument)
	return &page{document: []byte(document), policy: fmt.Sprintf(
		"default-src 'none'; script-src '%s'; style-src '%s'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "+
			"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'", hash(script), hash(pageStyle),
	)}
}

// hash names a text as a policy does.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// ServeHTTP gives the page.
func (p *page) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	header(w, "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", p.policy)
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("X-Frame-Options", "DENY")
	w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
	_, _ = w.Write(p.document) // an error: the client has gone
}
