package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// event is one line of `go test -json`.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Elapsed    float64
	Output     string
}

// lack is a part that the machine lacks, as testenv.Require wrote it.
type lack struct{ part, reason, enable string }

var skipLine = regexp.MustCompile(`(?m)(?:^|: )SKIP ([a-z0-9_-]+): (.*); enable with: (.*)$`)

var orderLine = regexp.MustCompile(`^=== (RUN|PAUSE|CONT|NAME) `)

// summary collects the events of one `go test -json` run.
type summary struct {
	out     io.Writer
	verbose bool
	require []string

	passed, failed, skipped int
	failures                []string
	lacks                   map[lack]int
	otherSkips              []string
	times                   []timed

	packages map[string]*packageState
	builds   map[string]*strings.Builder
}

type timed struct {
	name    string
	seconds float64
}

// packageState holds the output of what has not ended yet. Output of tests that pass is thrown away as soon as they
// end, so a long run does not grow with what it prints.
type packageState struct {
	output  map[string]*strings.Builder // by test; "" is the package's own
	running map[string]bool
	failed  bool
}

func newSummary(out io.Writer, require string, verbose bool) *summary {
	s := &summary{
		out: out, verbose: verbose,
		lacks: map[lack]int{}, packages: map[string]*packageState{}, builds: map[string]*strings.Builder{},
	}
	for name := range strings.SplitSeq(require, ",") {
		if name = strings.TrimSpace(name); name != "" {
			s.require = append(s.require, name)
		}
	}
	return s
}

// line takes one line of the stream. What is no event (go prints a few things plainly) is passed through.
func (s *summary) line(text []byte) {
	var e event
	if err := json.Unmarshal(text, &e); err != nil || e.Action == "" {
		s.printf("%s", text)
		return
	}
	switch e.Action {
	case "build-output":
		build := s.builds[e.ImportPath]
		if build == nil {
			build = &strings.Builder{}
			s.builds[e.ImportPath] = build
		}
		build.WriteString(e.Output)
		return
	case "build-fail":
		if build := s.builds[e.ImportPath]; build != nil {
			s.printf("%s", build.String())
		}
		return
	}
	state := s.packages[e.Package]
	if state == nil {
		state = &packageState{output: map[string]*strings.Builder{}, running: map[string]bool{}}
		s.packages[e.Package] = state
	}
	switch e.Action {
	case "run":
		state.running[e.Test] = true
	case "output":
		if s.verbose {
			s.printf("%s", e.Output)
		}
		output := state.output[e.Test]
		if output == nil {
			output = &strings.Builder{}
			state.output[e.Test] = output
		}
		// What go test says of the order of tests is no help in a failure.
		if !orderLine.MatchString(e.Output) {
			output.WriteString(e.Output)
		}
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.packageEnded(e, state)
		} else {
			s.testEnded(e, state)
		}
	}
}

func (s *summary) testEnded(e event, state *packageState) {
	name := e.Package + "." + e.Test
	output := ""
	if builder := state.output[e.Test]; builder != nil {
		output = builder.String()
	}
	delete(state.running, e.Test)
	// A failing subtest is shown when it ends, and so is what its parent said.
	delete(state.output, e.Test)
	if !strings.Contains(e.Test, "/") {
		s.times = append(s.times, timed{name, e.Elapsed})
	}
	switch e.Action {
	case "pass":
		s.passed++
	case "fail":
		s.failed++
		state.failed = true
		s.failures = append(s.failures, name)
		if !s.verbose {
			s.printf("%s", output)
		}
	case "skip":
		s.skipped++
		found := skipLine.FindStringSubmatch(output)
		if found == nil {
			s.otherSkips = append(s.otherSkips, name+": "+reasonOf(output))
			return
		}
		s.lacks[lack{found[1], found[2], found[3]}]++
		if slices.Contains(s.require, found[1]) || slices.Contains(s.require, "all") {
			s.failed++
			s.skipped--
			s.failures = append(s.failures, name+" (skipped for "+found[1]+", which AGENTKERNEL_TEST_REQUIRE demands)")
		}
	}
}

func (s *summary) packageEnded(e event, state *packageState) {
	own := ""
	if builder := state.output[""]; builder != nil {
		own = builder.String()
	}
	switch {
	case s.verbose:
	case e.Action == "fail" && !state.failed:
		// Nothing that failed by itself: a build that failed, a panic, a test that ended the process, a time-out,
		// or a race found at exit. Whatever was said and not yet shown belongs to it.
		s.unfinished(state)
		s.printf("%s", own)
	case e.Action == "fail":
		// The panic or the race report after a failure, if there is one, and the line of go test.
		s.printf("%s", own)
	default:
		if line := closingLine(own); !strings.HasSuffix(line, "[no test files]\n") {
			s.printf("%s", line)
		}
	}
	if e.Action == "fail" && !state.failed {
		s.failed++
		s.failures = append(s.failures, e.Package+" (the package as a whole)")
	}
	delete(s.packages, e.Package)
}

// unfinished prints what tests said that did not end, and names them.
func (s *summary) unfinished(state *packageState) {
	for _, test := range slices.Sorted(maps.Keys(state.running)) {
		s.printf("did not end: %s\n", test)
		if output := state.output[test]; output != nil {
			s.printf("%s", output.String())
		}
	}
}

// finish prints the summary and gives the status to end with.
func (s *summary) finish(goTest error, slowest int) int {
	for name, state := range s.packages {
		s.failed++
		s.failures = append(s.failures, name+" (did not end)")
		s.unfinished(state)
	}
	if slowest > 0 && len(s.times) > 0 {
		slices.SortStableFunc(s.times, func(a, b timed) int {
			switch {
			case a.seconds > b.seconds:
				return -1
			case a.seconds < b.seconds:
				return 1
			}
			return 0
		})
		s.printf("\nSlowest tests:\n")
		for _, test := range s.times[:min(slowest, len(s.times))] {
			s.printf("  %7.1f s  %s\n", test.seconds, test.name)
		}
	}
	if len(s.lacks) > 0 {
		s.printf("\nSkipped for what this machine lacks:\n")
		table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintf(table, "  part\ttests\treason\tenable with\n")
		lacks := make([]lack, 0, len(s.lacks))
		for l := range s.lacks {
			lacks = append(lacks, l)
		}
		slices.SortFunc(lacks, func(a, b lack) int {
			return strings.Compare(a.part+"\n"+a.reason+"\n"+a.enable, b.part+"\n"+b.reason+"\n"+b.enable)
		})
		for _, l := range lacks {
			_, _ = fmt.Fprintf(table, "  %s\t%d\t%s\t%s\n", l.part, s.lacks[l], l.reason, l.enable)
		}
		_ = table.Flush()
	}
	s.list("Skipped otherwise:", s.otherSkips)
	s.list("Failed:", s.failures)

	status := 0
	switch {
	case goTest != nil || s.failed > 0:
		if s.failed == 0 {
			s.printf("\ngo test: %v\n", goTest)
			s.failed++
		}
		status = 1
	case s.passed == 0:
		s.printf("\nno test passed and none failed: nothing ran\n")
		status = 1
	}
	s.printf("\n%d passed, %d failed, %d skipped\n", s.passed, s.failed, s.skipped)
	return status
}

func (s *summary) list(title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	slices.Sort(lines)
	s.printf("\n%s\n", title)
	for _, line := range lines {
		s.printf("  %s\n", line)
	}
}

func (s *summary) printf(format string, arguments ...any) {
	// Whoever reads this may have gone; the status still tells.
	_, _ = fmt.Fprintf(s.out, format, arguments...)
}

// reasonOf finds what a test said when it was skipped: the lines that are not go test's own.
func reasonOf(output string) string {
	var said []string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "--- ") {
			continue
		}
		said = append(said, line)
	}
	return strings.Join(said, " ")
}

// closingLine is the line about the package that go test prints without -v, with what it says of coverage.
func closingLine(own string) string {
	lines := strings.SplitAfter(own, "\n")
	for _, line := range slices.Backward(lines) {
		if strings.HasPrefix(line, "ok ") || strings.HasPrefix(line, "? ") || strings.HasPrefix(line, "FAIL\t") {
			return line
		}
	}
	return own
}
