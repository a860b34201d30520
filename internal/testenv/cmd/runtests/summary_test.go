package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// runModule runs the real go test over a module of one file and gives status and output.
func runModule(t *testing.T, source, require string) (int, string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.test/m\n\ngo 1.26\n", "m_test.go": source} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.CommandContext(t.Context(), "go", "test", "-json", "./...")
	command.Dir = dir
	command.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	stream, goTest := command.Output()
	var exit *exec.ExitError
	if goTest != nil && !errors.As(goTest, &exit) {
		t.Fatal(goTest)
	}
	var out strings.Builder
	s := newSummary(&out, require, false)
	for line := range strings.Lines(string(stream)) {
		s.line([]byte(line))
	}
	status := s.finish(goTest, 3)
	return status, out.String()
}

const header = "package m\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nvar (\n\t_ = os.Exit\n\t_ testing.TB\n)\n\n"

func TestSummary(t *testing.T) {
	const lacking = `
func TestPasses(t *testing.T) { t.Log("quiet") }
func TestLacks(t *testing.T) { t.Skip("SKIP docker: no engine answers; enable with: tools/dockerd.sh up") }
func TestLacksToo(t *testing.T) { t.Skip("SKIP docker: no engine answers; enable with: tools/dockerd.sh up") }
func TestShort(t *testing.T) { t.Skip("only on Sundays") }
`
	for _, test := range []struct {
		name, source, require string
		status                int
		want, not             []string
		last                  string
	}{
		{
			name: "skips are told with their remedy", source: lacking, status: 0,
			want: []string{"ok  \texample.test/m", "docker  2      no engine answers  tools/dockerd.sh up", "TestShort: m_test.go", "only on Sundays"},
			not:  []string{"quiet", "Failed:"}, last: "1 passed, 0 failed, 3 skipped",
		},
		{
			name: "a required part that was skipped fails", source: lacking, require: "docker", status: 1,
			want: []string{"Failed:", "TestLacks (skipped for docker"}, last: "1 passed, 2 failed, 1 skipped",
		},
		{
			name: "a failure is shown in full", status: 1,
			source: `func TestOuter(t *testing.T) { t.Run("inner", func(t *testing.T) { t.Log("first"); t.Error("second") }) }` + "\n",
			want:   []string{"first", "second", "FAIL\texample.test/m", "example.test/m.TestOuter/inner"}, not: []string{"=== RUN"}, last: "0 passed, 2 failed, 0 skipped",
		},
		{
			name: "a test that ends the process", status: 1,
			source: `func TestExits(t *testing.T) { println("last words"); os.Exit(3) }` + "\n",
			want:   []string{"last words", "FAIL\texample.test/m", "TestExits"}, last: "0 passed, 1 failed, 0 skipped",
		},
		{
			name: "a panic", status: 1,
			source: `func TestPanics(t *testing.T) { panic("out of luck") }` + "\n",
			want:   []string{"out of luck", "m_test.go:", "FAIL\texample.test/m"}, last: "0 passed, 1 failed, 0 skipped",
		},
		{
			name: "a build that fails", status: 1, source: "func TestX(t *testing.T) { undefined() }\n",
			want: []string{"undefined: undefined", "the package as a whole"}, last: "0 passed, 1 failed, 0 skipped",
		},
		{
			name: "no test at all", status: 1, source: "\n", want: []string{"nothing ran"}, last: "0 passed, 0 failed, 0 skipped",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			status, out := runModule(t, header+test.source, test.require)
			if status != test.status {
				t.Errorf("status %d, want %d", status, test.status)
			}
			for _, want := range test.want {
				if !strings.Contains(out, want) {
					t.Errorf("output lacks %q", want)
				}
			}
			for _, not := range test.not {
				if strings.Contains(out, not) {
					t.Errorf("output holds %q", not)
				}
			}
			if !strings.HasSuffix(out, "\n"+test.last+"\n") {
				t.Errorf("the last line is not %q", test.last)
			}
			if t.Failed() {
				t.Logf("the output:\n%s", out)
			}
		})
	}
}

func TestSummaryOfRunCutShort(t *testing.T) {
	var out strings.Builder
	s := newSummary(&out, "", false)
	for _, line := range []string{
		`{"Action":"start","Package":"p"}`,
		`{"Action":"run","Package":"p","Test":"TestHangs"}`,
		`{"Action":"output","Package":"p","Test":"TestHangs","Output":"still waiting\n"}`,
		`this line is no event`,
	} {
		s.line([]byte(line + "\n"))
	}
	if status := s.finish(errors.New("signal: killed"), 0); status != 1 {
		t.Errorf("status %d, want 1", status)
	}
	for _, want := range []string{"still waiting", "this line is no event", "p (did not end)", "0 passed, 1 failed, 0 skipped"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out.String())
		}
	}
}
