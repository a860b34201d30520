package docscheck_test

import (
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestLinks follows every link. What lies elsewhere is only looked at: no test asks the network.
func TestLinks(t *testing.T) {
	pages := readPages(t)
	byName := pagesByName(pages)
	followed := 0
	for _, p := range pages {
		for _, l := range p.links {
			followed++
			if said := follow(p, l.target, byName); said != "" {
				t.Errorf("%s:%d: %s: %s", p.name, l.line, l.target, said)
			}
		}
		for i, line := range strings.Split(p.text, "\n") {
			if strings.Contains(line, "](") && strings.Contains(line, "] (") || strings.Contains(line, "][") && !strings.Contains(line, "`") {
				t.Errorf("%s:%d: a link that Markdown does not see: %s", p.name, i+1, line)
			}
		}
	}
	if followed < 100 {
		t.Errorf("followed only %d links", followed)
	}
}

// follow says what is wrong with a link, or nothing.
func follow(p *page, target string, pages map[string]*page) string {
	parsed, err := url.Parse(target)
	if err != nil {
		return err.Error()
	}
	if parsed.Scheme != "" {
		host := parsed.Hostname()
		switch {
		case parsed.Scheme != "https" && parsed.Scheme != "http":
			return "neither http nor https"
		case !strings.Contains(host, ".") || strings.Contains(host, ".."):
			return fmt.Sprintf("no host: %q", host)
		}
		return ""
	}
	if strings.HasPrefix(parsed.Path, "/") {
		return "an absolute path leads elsewhere in the registry and on GitHub"
	}
	to := p
	if parsed.Path != "" {
		name := clean(p.name, parsed.Path)
		if strings.HasPrefix(name, "../") {
			return "outside of the repository"
		}
		if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(name))); err != nil {
			return "there is no " + name
		}
		// The registry shows the pages and nothing else of the repository.
		if inRegistry(p.name) && (!inRegistry(name) || path.Ext(name) != ".md") {
			return "the registry does not have " + name
		}
		if to = pages[name]; to == nil {
			if parsed.Fragment != "" {
				return name + " has no anchors"
			}
			return ""
		}
	}
	if parsed.Fragment != "" && !to.anchors[parsed.Fragment] {
		return fmt.Sprintf("%s has no heading #%s", to.name, parsed.Fragment)
	}
	return ""
}

func TestFollowFindsDeadLinks(t *testing.T) {
	here := &page{name: "docs/guides/here.md", anchors: map[string]bool{"there": true}}
	pages := map[string]*page{"docs/index.md": {name: "docs/index.md", anchors: map[string]bool{"secrets": true}}, "SECURITY.md": {name: "SECURITY.md"}}
	for target, good := range map[string]bool{
		"#there": true, "#nowhere": false, "../index.md": true, "../index.md#secrets": true, "../index.md#nothing": false, "nothing.md": false,
		"../../SECURITY.md": false, "../../../x.md": false, "/docs/index.md": false, "https://example.org/a": true, "https:///a": false, "https://a": false,
		"ftp://example.org": false, "%zz": false, "../adr/0001-schema-table.md": false,
	} {
		if said := follow(here, target, pages); (said == "") != good {
			t.Errorf("%s: %q", target, said)
		}
	}
}

// TestEveryGuideIsFound: a page that no other page leads to is not read.
func TestEveryGuideIsFound(t *testing.T) {
	pages := readPages(t)
	byName := pagesByName(pages)
	for _, start := range []string{"README.md", "docs/index.md"} {
		if byName[start] == nil {
			t.Fatalf("no %s", start)
		}
	}
	var linked []string
	for _, l := range byName["docs/index.md"].links {
		if parsed, err := url.Parse(l.target); err == nil && parsed.Scheme == "" && parsed.Path != "" {
			linked = append(linked, clean("docs/index.md", parsed.Path))
		}
	}
	for _, p := range pages {
		if strings.HasPrefix(p.name, "docs/guides/") && !slices.Contains(linked, p.name) {
			t.Errorf("docs/index.md does not lead to %s", p.name)
		}
	}
}
