package testenv

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// envRerun marks the process that runs one test again as an ordinary user.
const envRerun = "AGENTKERNEL_TEST_UNPRIVILEGED"

// UnprivilegedID is the uid and gid that tests started by root take to be an ordinary user: one that no account of a
// usual system has, so that nothing else runs under it.
const UnprivilegedID = 64737

// RerunUnprivileged runs a test as an ordinary user:
//
//	func TestEscapesUnprivileged(t *testing.T) {
//		if testenv.RerunUnprivileged(t) {
//			return
//		}
//		// from here on the process is not root
//
// Called as root it runs this one test again in a process of an ordinary user, passes on its output, its skip or its
// failure, and returns true. Called by an ordinary user it returns false. Call it in a top-level test. The working
// directory of that process is its home, for it may not be able to enter the package's.
func RerunUnprivileged(t *testing.T) bool {
	t.Helper()
	Require(t, Unprivileged)
	if os.Geteuid() != 0 {
		return false
	}
	if os.Getenv(envRerun) != "" {
		t.Fatalf("%s is set, and yet this process is root", envRerun)
	}

	// The test program lies in a directory that only root may enter, and so may the package's: the copy gets a
	// directory of its own that the ordinary user owns, with room for its HOME and its temporary files.
	base, err := os.MkdirTemp("", "agentkernel-unprivileged-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(base); err != nil {
			t.Errorf("left behind by the unprivileged run: %v", err)
		}
	})
	program := filepath.Join(base, "test")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := copyProgram(self, program); err != nil {
		t.Fatal(err)
	}
	home, temp := filepath.Join(base, "home"), filepath.Join(base, "tmp")
	for _, dir := range []string{home, temp} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, UnprivilegedID, UnprivilegedID); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}

	command := exec.CommandContext(t.Context(), program, "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	command.Dir = home
	command.Env = append(os.Environ(), envRerun+"=1", "HOME="+home, "TMPDIR="+temp, "USER=agentkernel-test",
		"XDG_CACHE_HOME="+filepath.Join(home, "cache"), "XDG_DATA_HOME="+filepath.Join(home, "data"),
		"XDG_CONFIG_HOME="+filepath.Join(home, "config"), "XDG_RUNTIME_DIR=", "XDG_STATE_HOME="+filepath.Join(home, "state"))
	dropPrivileges(command)
	out, err := command.CombinedOutput()
	switch outcome, message := readRerun(t.Name(), string(out), err); outcome {
	case "pass":
		t.Logf("as uid %d:\n%s", UnprivilegedID, message)
	case "skip":
		t.Skip(message)
	default:
		t.Fatalf("as uid %d: %s", UnprivilegedID, message)
	}
	return true
}

// readRerun says how the one test of the other process ended, from what it printed.
func readRerun(name, text string, err error) (outcome, message string) {
	switch {
	case err != nil:
		return "fail", err.Error() + "\n" + text
	case strings.Contains(text, "--- SKIP: "+name+" "):
		if _, reason, found := strings.Cut(text, ": SKIP "); found {
			reason, _, _ := strings.Cut(reason, "\n")
			return "skip", "SKIP " + reason
		}
		return "skip", text
	case strings.Contains(text, "--- PASS: "+name+" "):
		return "pass", text
	default:
		return "fail", "the test did not run\n" + text
	}
}

func copyProgram(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(target, source); err != nil {
		_ = target.Close()
		return err
	}
	return target.Close()
}
