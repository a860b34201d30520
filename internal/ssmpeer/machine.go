//go:build unix

package ssmpeer

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Machine is one managed node.
type Machine struct {
	ID string
	// Ping is Online, ConnectionLost or Inactive. Platform is Linux, Windows or MacOS.
	Ping, Platform string
	// Script, when it is set, plays commands instead of running them: it gives the states that questions about one see, one
	// after the other, the last one for ever. Nil: they really run.
	Script func(lines []string) []State
	// Path is the PATH of the agent; empty: the usual one.
	Path string

	house *house
}

// State is what one question about a command sees.
type State struct {
	Status, Details string
	Code            int
	Stdout, Stderr  string
	// Unknown: InvocationDoesNotExist.
	Unknown bool
	// CommandID, when it is set, answers about another command.
	CommandID string
}

func (s State) terminal() bool {
	return slices.Contains([]string{"Success", "Failed", "TimedOut", "Cancelled"}, s.Status)
}

// AddMachine makes a machine that is online and runs Linux, unless m says otherwise.
func (p *Peer) AddMachine(m Machine) *Machine {
	if m.Ping == "" {
		m.Ping = "Online"
	}
	if m.Platform == "" {
		m.Platform = "Linux"
	}
	if m.Path == "" {
		m.Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	p.Lock()
	defer p.Unlock()
	p.machines[m.ID] = &m
	return &m
}

// AddOwnMachine makes a machine that shares no process, no user and no /tmp with the computer that the test runs on.
func (p *Peer) AddOwnMachine(m Machine, own Own) (*Machine, error) {
	h, err := p.build(own)
	if err != nil {
		return nil, err
	}
	m.house = h
	p.Lock()
	p.houses = append(p.houses, h)
	p.Unlock()
	return p.AddMachine(m), nil
}

// RemoveMachine makes a machine unknown.
func (p *Peer) RemoveMachine(id string) {
	p.Lock()
	defer p.Unlock()
	delete(p.machines, id)
}

func (m *Machine) information() map[string]any {
	kind := "EC2Instance"
	if strings.HasPrefix(m.ID, "mi-") {
		kind = "ManagedInstance"
	}
	return map[string]any{
		"InstanceId": m.ID, "PingStatus": m.Ping, "PlatformType": m.Platform, "PlatformName": "Peer Linux", "PlatformVersion": "1", "AgentVersion": "3.3.0.0",
		"ResourceType": kind, "ComputerName": "machine.peer.internal", "IPAddress": "10.0.0.7", "LastPingDateTime": float64(time.Now().Unix()), "IsLatestVersion": true,
	}
}

// command is one command on one machine.
type command struct {
	id      string
	p       *Peer
	in      sendInput
	exec    int
	machine *Machine

	mu        sync.Mutex
	states    []State // of a scripted machine
	asked     int
	state     State
	pid       int
	cancelled bool
}

func uuid() string {
	h := randomHex(16)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// newCommand is called with the lock held.
func (p *Peer) newCommand(in sendInput, exec int) *command {
	c := &command{id: uuid(), p: p, in: in, exec: exec, machine: p.machines[in.InstanceIDs[0]], state: State{Status: "Pending", Details: "Pending", Code: -1}}
	p.commands[c.id] = c
	if c.machine.Script != nil {
		c.states = c.machine.Script(in.Parameters["commands"])
		return c
	}
	if c.machine.Ping == "Online" {
		p.running.Go(c.run)
	}
	return c
}

// next is what one question sees.
func (c *command) next() (State, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	if c.states != nil {
		s := c.states[min(c.asked, len(c.states))-1]
		return s, !s.Unknown
	}
	c.p.Lock()
	unseen := c.p.Unseen
	c.p.Unlock()
	return c.state, c.asked > unseen
}

func (c *command) set(s State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = s
}

func (c *command) key(instance string) string {
	k := c.in.OutputS3BucketName + "/"
	if c.in.OutputS3KeyPrefix != "" {
		k += strings.Trim(c.in.OutputS3KeyPrefix, "/") + "/"
	}
	return k + c.id + "/" + instance + "/awsrunShellScript/0.awsrunShellScript/"
}

// run does what the agent does: the lines of commands as one file, run by sh in a process group of its own, with nothing
// on standard input.
func (c *command) run() {
	base, house := "", c.machine.house
	if house != nil {
		base = filepath.Join(house.dir, "run")
	}
	dir, err := os.MkdirTemp(base, "ssmpeer-")
	if err != nil {
		c.set(State{Status: "Failed", Details: "Failed", Code: -1, Stderr: err.Error()})
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	script := filepath.Join(dir, "_script.sh")
	if err := os.WriteFile(script, []byte(strings.Join(c.in.Parameters["commands"], "\n")+"\n"), 0o700); err != nil { // #nosec G306 -- the agent's own mode
		c.set(State{Status: "Failed", Details: "Failed", Code: -1, Stderr: err.Error()})
		return
	}
	// Into files, as the agent does: what is left of the script and holds them open does not hold up its end.
	stdout, err := os.Create(filepath.Join(dir, "stdout")) // #nosec G304 -- of this command
	if err == nil {
		defer stdout.Close()
		var stderr *os.File
		if stderr, err = os.Create(filepath.Join(dir, "stderr")); err == nil { // #nosec G304 -- of this command
			defer stderr.Close()
			c.runScript(dir, script, stdout, stderr)
		}
	}
	if err != nil {
		c.set(State{Status: "Failed", Details: "Failed", Code: -1, Stderr: err.Error()})
	}
}

func (c *command) runScript(dir, script string, stdout, stderr *os.File) {
	house := c.machine.house
	var err error
	program, argv := c.machine.find("sh"), []string{script}
	if house != nil {
		id := house.idOf(house.own.Agent)
		if err := errors.Join(os.Chown(dir, id, id), os.Chown(script, id, id)); err != nil {
			c.set(State{Status: "Failed", Details: "Failed", Code: -1, Stderr: err.Error()})
			return
		}
		program, argv = "nsenter", house.enter(house.own.Agent, "sh", filepath.Join(inside, filepath.Base(dir), "_script.sh"))
	}
	cmd := exec.Command(program, argv...) //nolint:noctx // #nosec G204 -- its end is that of the agent: cancelled, timed out, closed
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, stdout, stderr
	cmd.Env = []string{"PATH=" + c.machine.Path, "HOME=/root", "LANG=C.UTF-8", c.p.mark}
	if d := c.in.Parameters["workingDirectory"]; len(d) == 1 && d[0] != "" {
		cmd.Dir = d[0]
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.mu.Lock()
	if c.cancelled {
		c.mu.Unlock()
		return
	}
	if err := cmd.Start(); err != nil {
		c.mu.Unlock()
		c.set(State{Status: "Failed", Details: "Failed", Code: -1, Stderr: err.Error()})
		return
	}
	c.pid = cmd.Process.Pid
	c.state = State{Status: "InProgress", Details: "InProgress", Code: -1}
	c.mu.Unlock()

	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	timer := time.NewTimer(time.Duration(c.exec) * time.Second)
	defer timer.Stop()
	late := false
	select {
	case err = <-ended:
	case <-timer.C:
		late = true
		c.kill()
		err = <-ended
	case <-c.p.closing:
		c.kill()
		err = <-ended
	}
	said := func(f *os.File) string {
		b, rerr := os.ReadFile(f.Name())
		err = errors.Join(err, rerr)
		return string(b)
	}
	out, errOut := said(stdout), said(stderr)
	c.finish(err, late, out, errOut)
}

func (c *command) finish(err error, late bool, stdout, stderr string) {
	code := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := State{Status: "Success", Details: "Success", Code: code, Stdout: strings.ToValidUTF8(stdout, "\uFFFD"), Stderr: strings.ToValidUTF8(stderr, "\uFFFD")}
	switch {
	case c.cancelled:
		s.Status, s.Details, s.Code = "Cancelled", "Cancelled", -1
	case late:
		s.Status, s.Details, s.Code = "TimedOut", "ExecutionTimedOut", -1
	case code != 0:
		s.Status, s.Details = "Failed", "Failed"
		s.Stderr += fmt.Sprintf("failed to run commands: exit status %d", code)
	}
	c.state = s
	if c.in.OutputS3BucketName != "" {
		c.p.Lock()
		defer c.p.Unlock()
		key := c.key(c.in.InstanceIDs[0])
		c.p.objects[key+"stdout"], c.p.objects[key+"stderr"] = []byte(stdout), []byte(stderr)
		c.p.journal = append(c.p.journal, Call{Action: "s3:PutObject", Caller: c.machine.ID, Params: map[string]any{"Key": key}})
	}
}

// find is the first program of this name in the machine's own PATH.
func (m *Machine) find(name string) string {
	for _, dir := range filepath.SplitList(m.Path) {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return filepath.Join(dir, name)
		}
	}
	return name
}

// kill ends the process group of the script, as the agent does: what left the group lives on, and so does what the agent's
// user may not signal.
func (c *command) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch h := c.machine.house; {
	case c.pid <= 0:
	case h != nil && h.own.Agent != "":
		id := strconv.Itoa(h.idOf(h.own.Agent))
		_ = exec.Command("setpriv", "--reuid", id, "--regid", id, "--clear-groups", "kill", "-KILL", "--", strconv.Itoa(-c.pid)).Run() //nolint:noctx // #nosec G204 -- of this command, and short
	default:
		_ = syscall.Kill(-c.pid, syscall.SIGKILL)
	}
}

func (c *command) cancel() {
	c.mu.Lock()
	if c.state.terminal() || c.states != nil {
		c.mu.Unlock()
		return
	}
	c.cancelled = true
	if c.pid == 0 {
		c.state = State{Status: "Cancelled", Details: "Cancelled", Code: -1}
	} else {
		c.state = State{Status: "Cancelling", Details: "Cancelling", Code: -1}
	}
	c.mu.Unlock()
	c.kill()
}

// Marked lists the processes of this machine whose environment holds text.
func Marked(text string) []int {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	var out []int
	for _, f := range files {
		b, err := os.ReadFile(f) // #nosec G304 -- of /proc
		if err != nil || !bytes.Contains(b, []byte(text)) {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(f, "/")[2]); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// Mark is what every process of a machine has in its environment.
func (p *Peer) Mark() string { return p.mark }

func killMarked(mark string) {
	for range 50 {
		pids := Marked(mark)
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
