// Package docscheck_test reads every page of the documentation the way its readers do: links lead somewhere, configuration
// parses, fits the schemas and validates, and what is shown as output is what comes out.
package docscheck_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// root is the directory of the repository.
const root = "../.."

// page is one Markdown file.
type page struct {
	name    string // from root, with slashes
	text    string
	blocks  []block
	links   []link
	anchors map[string]bool
	titles  []string // headings, as they stand
}

// block is a fenced code block.
type block struct {
	language string
	text     string
	line     int
	// comment is the HTML comment right before it, without its marks.
	comment string
}

type link struct {
	target string
	line   int
}

// readPages reads everything that a reader may meet: what lies in the root, and docs/.
func readPages(t *testing.T) []*page {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(filepath.Join(root, "docs"), func(name string, entry fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(name) == ".md" {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var pages []*page
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		from, err := filepath.Rel(root, name)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, readPage(filepath.ToSlash(from), string(content)))
	}
	if len(pages) < 20 {
		t.Fatalf("found only %d pages", len(pages))
	}
	return pages
}

var (
	frontMatter = regexp.MustCompile(`\A---\n(?s:.*?)\n---\n`)
	htmlID      = regexp.MustCompile(`<a [^>]*\bid="([^"]+)"`)
)

// readPage parses one page. The front matter is blanked out, so that lines keep their numbers.
func readPage(name, content string) *page {
	p := &page{name: name, text: content, anchors: map[string]bool{}}
	source := []byte(frontMatter.ReplaceAllStringFunc(content, func(head string) string { return strings.Repeat("\n", strings.Count(head, "\n")) }))
	line := func(offset int) int { return 1 + bytes.Count(source[:offset], []byte("\n")) }
	document := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader(source))
	last := 1
	walk := func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		if node.Type() == ast.TypeBlock && node.Lines() != nil && node.Lines().Len() > 0 {
			last = line(node.Lines().At(0).Start)
		}
		switch n := node.(type) {
		case *ast.FencedCodeBlock:
			b := block{language: string(n.Language(source)), text: string(n.Lines().Value(source)), line: last}
			if before, ok := n.PreviousSibling().(*ast.HTMLBlock); ok {
				written := strings.TrimSpace(string(before.Lines().Value(source)))
				b.comment = strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(written, "<!--"), "-->"))
			}
			p.blocks = append(p.blocks, b)
		case *ast.Heading:
			title := plain(n, source)
			p.titles = append(p.titles, title)
			p.anchors[unused(slug(title), p.anchors)] = true
		case *ast.Link:
			p.links = append(p.links, link{string(n.Destination), last})
		case *ast.Image:
			p.links = append(p.links, link{string(n.Destination), last})
		case *ast.AutoLink:
			p.links = append(p.links, link{string(n.URL(source)), last})
		}
		return ast.WalkContinue, nil
	}
	if err := ast.Walk(document, walk); err != nil {
		panic(err) // walk returns none
	}
	for _, found := range htmlID.FindAllStringSubmatch(content, -1) {
		p.anchors[found[1]] = true
	}
	return p
}

func plain(node ast.Node, source []byte) string {
	var out strings.Builder
	for child := node.FirstChild(); child != nil; child = child.NextSibling() {
		switch n := child.(type) {
		case *ast.Text:
			out.Write(n.Segment.Value(source))
		default:
			out.WriteString(plain(n, source))
		}
	}
	return out.String()
}

// slug is the anchor of a heading, as GitHub and the registry make it.
func slug(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
			return unicode.ToLower(r)
		case r == ' ':
			return '-'
		}
		return -1
	}, title)
}

// unused counts headings of the same text.
func unused(anchor string, taken map[string]bool) string {
	if !taken[anchor] {
		return anchor
	}
	for n := 1; ; n++ {
		if next := fmt.Sprintf("%s-%d", anchor, n); !taken[next] {
			return next
		}
	}
}

func TestReadPage(t *testing.T) {
	p := readPage("x.md", "---\na: b\n---\n\n# A `B`, c!\n\n## Same\n\n## Same\n\n<a id=\"own\"></a>\n\n[t](y.md#z) and <https://example.org/>\n\n- item\n\n<!-- said -->\n```hcl\na = 1\n```\n")
	if want := []link{{"y.md#z", 13}, {"https://example.org/", 13}}; !slices.Equal(p.links, want) {
		t.Errorf("links %v", p.links)
	}
	for _, want := range []string{"a-b-c", "same", "same-1", "own"} {
		if !p.anchors[want] {
			t.Errorf("no anchor %q among %v", want, p.anchors)
		}
	}
	if want := []block{{language: "hcl", text: "a = 1\n", line: 19, comment: "said"}}; !slices.Equal(p.blocks, want) {
		t.Errorf("blocks %+v", p.blocks)
	}
}

// inRegistry says whether the registry shows the page. It knows no decision records.
func inRegistry(name string) bool {
	return strings.HasPrefix(name, "docs/") && !strings.HasPrefix(name, "docs/adr/")
}

// pagesByName is for lookups.
func pagesByName(pages []*page) map[string]*page {
	out := make(map[string]*page, len(pages))
	for _, p := range pages {
		out[p.name] = p
	}
	return out
}

// clean joins the directory of a page and a relative target.
func clean(from, target string) string { return path.Join(path.Dir(from), target) }
