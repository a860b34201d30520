// Command testcluster brings a real single-node Kubernetes cluster up for the tests, and down again.
//
//	testcluster up      starts it unless it runs; prints what a user needs to know
//	testcluster down    stops everything that up started and removes every trace of it
//	testcluster status  one line; exit status 0 when it can be used
//	testcluster env     the variables of up once more
//
// Its parts are etcd, containerd, runc and the CNI plugins of Debian, and the programs that build.sh compiles. It
// needs root and changes nothing outside its own directory but what a node needs: a bridge for the node's address
// and one for its pods, packet filter rules, control groups, network namespaces. down removes all of that.
//
// Everything is in AGENTKERNEL_TESTCLUSTER_DIR, by default in the temporary directory. With
// AGENTKERNEL_TESTCLUSTER=existing nothing is started: the cluster of KUBECONFIG is used, and pods in it run the
// image AGENTKERNEL_TESTCLUSTER_IMAGE.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := newCluster()
	var err error
	command := ""
	if len(os.Args) == 2 {
		command = os.Args[1]
	}
	switch command {
	case "up":
		if err = c.up(ctx); err == nil {
			c.printEnv()
		}
	case "down":
		err = c.down(context.WithoutCancel(ctx))
	case "status":
		if err = c.ready(ctx); err == nil {
			fmt.Printf("the cluster of %s answers\n", c.kubeconfig())
		}
	case "env":
		c.printEnv()
	default:
		fmt.Fprintln(os.Stderr, "usage: testcluster up|down|status|env")
		os.Exit(2)
	}
	if err != nil {
		say("%v", err)
		os.Exit(1)
	}
}

func say(format string, a ...any) { fmt.Fprintf(os.Stderr, "testcluster: "+format+"\n", a...) }

// Names and addresses of the one cluster that a machine can hold.
const (
	nodeName     = "testnode"
	nodeLink     = "ak-node0" // carries the node's address: the kubelet refuses a loopback one
	podLink      = "ak-pods0"
	nodeAddress  = "10.99.0.1"
	podCIDR      = "10.97.0.0/24"
	serviceCIDR  = "10.98.0.0/24"
	firstService = "10.98.0.1"
	runDir       = "/run/agentkernel-testcluster" // sockets: their paths must be short

	testImage = "agentkernel-test/python:1"
	bareImage = "agentkernel-test/bare:1"
)

type cluster struct {
	dir      string // everything of this cluster
	cache    string // what outlives it: programs, the Debian tree of the test image
	existing bool   // somebody else's cluster
}

func newCluster() *cluster {
	dir := os.Getenv("AGENTKERNEL_TESTCLUSTER_DIR")
	if dir == "" {
		dir = filepath.Join(os.TempDir(), fmt.Sprintf("agentkernel-testcluster.%d", os.Getuid()))
	}
	cache := os.Getenv("AGENTKERNEL_CACHE")
	if cache == "" {
		home, err := os.UserCacheDir()
		if err != nil {
			home = os.TempDir()
		}
		cache = filepath.Join(home, "terraform-provider-agentkernel")
	}
	return &cluster{dir: dir, cache: cache, existing: os.Getenv("AGENTKERNEL_TESTCLUSTER") == "existing"}
}

func (c *cluster) path(parts ...string) string {
	return filepath.Join(append([]string{c.dir}, parts...)...)
}

func (c *cluster) kubeconfig() string {
	if c.existing {
		return os.Getenv("KUBECONFIG")
	}
	return c.path("kubeconfig")
}

func (c *cluster) printEnv() {
	image := testImage
	if c.existing {
		image = os.Getenv("AGENTKERNEL_TESTCLUSTER_IMAGE")
	}
	fmt.Printf("export KUBECONFIG=%s\nexport KUBECTL=%s\nexport AGENTKERNEL_TESTCLUSTER_IMAGE=%s\n", c.kubeconfig(), c.kubectlPath(), image)
	if !c.existing {
		fmt.Printf("# audit log of the API server: %s\n# logs: %s\n", c.path("audit.log"), c.path("logs"))
	}
}

func (c *cluster) kubectlPath() string {
	if c.existing {
		return "kubectl"
	}
	return c.path("bin", "kubectl")
}

// kubectl runs the cluster's own kubectl as its administrator.
func (c *cluster) kubectl(ctx context.Context, args ...string) (string, error) {
	return output(ctx, "", c.kubectlPath(), append([]string{"--kubeconfig", c.kubeconfig(), "--request-timeout=10s"}, args...)...)
}

// ready says why the cluster cannot be used, nil when it can.
func (c *cluster) ready(ctx context.Context) error {
	if c.kubeconfig() == "" {
		return errors.New("KUBECONFIG names no cluster")
	}
	if _, err := os.Stat(c.kubeconfig()); err != nil {
		return errors.New("no cluster runs; start one with: make cluster-up")
	}
	if _, err := c.kubectl(ctx, "get", "--raw", "/readyz"); err != nil {
		return fmt.Errorf("the API server is not ready: %w", err)
	}
	if c.existing {
		return nil
	}
	out, err := c.kubectl(ctx, "get", "node", nodeName, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}{.spec.podCIDR}`)
	if err != nil {
		return err
	}
	if out != "True"+podCIDR {
		return fmt.Errorf("the node is not ready (%q)", out)
	}
	return c.daemonsRun()
}

// up starts the cluster. It can be called again at any time: what runs stays, what runs in part is started afresh.
func (c *cluster) up(ctx context.Context) error {
	if c.existing {
		return c.ready(ctx)
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root")
	}
	if c.ready(ctx) == nil {
		say("runs already")
		return nil
	}
	programs, err := c.programs(ctx)
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := c.down(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	if err := c.start(ctx, programs); err != nil {
		c.tails()
		return errors.Join(err, c.down(context.WithoutCancel(ctx)))
	}
	say("up after %s", time.Since(begun).Round(100*time.Millisecond))
	return nil
}

// programs compiles what Debian does not have, and complains about what Debian should have given.
func (c *cluster) programs(ctx context.Context) (string, error) {
	needed := map[string]string{
		"etcd": "etcd-server", "containerd": "containerd", "ctr": "containerd", "runc": "runc", "ipset": "ipset",
		"iptables": "iptables", "ip": "iproute2", "/usr/lib/cni/bridge": "containernetworking-plugins",
	}
	for program, pkg := range needed {
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf("no %s on this machine; apt-get install %s", program, pkg)
		}
	}
	script, err := filepath.Abs("build.sh")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, script)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("the programs could not be compiled: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

func (c *cluster) start(ctx context.Context, programs string) error {
	for _, dir := range []string{"bin", "logs", "pids", "pki", "cni"} {
		if err := os.MkdirAll(c.path(dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(c.path("pki"), 0o700); err != nil {
		return err
	}
	if err := os.MkdirAll(runDir, 0o711); err != nil {
		return err
	}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"} {
		if err := os.Symlink(filepath.Join(programs, "components"), c.path("bin", name)); err != nil {
			return err
		}
	}
	if err := os.Symlink(filepath.Join(programs, "kube-router"), c.path("bin", "kube-router")); err != nil {
		return err
	}
	if err := c.makeNetwork(ctx); err != nil {
		return err
	}
	if err := c.makePKI(); err != nil {
		return err
	}
	return c.startDaemons(ctx)
}

// output runs a program to its end and gives what it printed; what it complained about is in the error.
func output(ctx context.Context, stdin, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return string(out), nil
}

// wait polls until check is content, and says what it last complained about when the time is over.
func wait(ctx context.Context, what string, limit time.Duration, check func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not after %s: %w", what, limit, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
