package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Ports of the cluster, all on the loopback interface or on the node's own address.
const (
	apiPort      = 16443
	etcdPort     = 16379
	etcdPeerPort = 16380
	kubeletPort  = 16250
)

// daemon is one long-running program of the cluster.
type daemon struct {
	name string
	args []string
	env  []string
}

// daemons lists what runs, in the order of starting.
func (c *cluster) daemons() []daemon {
	pki := func(name string) string { return c.path("pki", name) }
	bin := func(name string) string { return c.path("bin", name) }
	etcd := fmt.Sprintf("http://127.0.0.1:%d", etcdPort)
	peer := fmt.Sprintf("http://127.0.0.1:%d", etcdPeerPort)
	return []daemon{
		{name: "etcd", args: []string{
			"etcd", "--name=testcluster", "--data-dir=" + c.path("etcd"), "--listen-client-urls=" + etcd, "--advertise-client-urls=" + etcd,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=testcluster=" + peer,
			// A busy machine is no reason to elect a leader among one.
			"--heartbeat-interval=500", "--election-timeout=5000", "--snapshot-count=5000",
		}, env: []string{"ETCD_UNSUPPORTED_ARCH=arm64"}},
		{name: "containerd", args: []string{"containerd", "--config", c.path("containerd.toml")}},
		{name: "kube-apiserver", args: []string{
			bin("kube-apiserver"), "--etcd-servers=" + etcd, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", apiPort),
			"--advertise-address=" + nodeAddress, "--service-cluster-ip-range=" + serviceCIDR,
			"--client-ca-file=" + pki("ca.crt"), "--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
			"--kubelet-client-certificate=" + pki("kubelet-client.crt"), "--kubelet-client-key=" + pki("kubelet-client.key"),
			"--kubelet-certificate-authority=" + pki("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
			"--authorization-mode=Node,RBAC", "--service-account-key-file=" + pki("sa.key"), "--service-account-signing-key-file=" + pki("sa.key"),
			"--service-account-issuer=https://kubernetes.default.svc",
			"--audit-policy-file=" + c.path("audit-policy.yaml"), "--audit-log-path=" + c.path("audit.log"), "--audit-log-maxsize=200", "--audit-log-maxbackup=1",
			"--profiling=false",
		}},
		{name: "kube-controller-manager", args: []string{
			bin("kube-controller-manager"), "--kubeconfig=" + pki("controller-manager.config"), "--leader-elect=false", "--secure-port=0",
			"--service-account-private-key-file=" + pki("sa.key"), "--root-ca-file=" + pki("ca.crt"), "--use-service-account-credentials",
			"--allocate-node-cidrs", "--cluster-cidr=" + podCIDR, "--node-cidr-mask-size=24", "--service-cluster-ip-range=" + serviceCIDR,
			// Tests stop the kubelet and wait for the node to be found lost; but this machine may be busy.
			"--node-monitor-period=2s", "--node-monitor-grace-period=30s",
		}},
		{name: "kube-scheduler", args: []string{
			bin("kube-scheduler"), "--kubeconfig=" + pki("scheduler.config"), "--leader-elect=false", "--secure-port=0",
		}},
		{name: "kubelet", args: []string{
			bin("kubelet"), "--kubeconfig=" + pki("kubelet.config"), "--config=" + c.path("kubelet.yaml"), "--root-dir=" + c.path("kubelet"),
			"--hostname-override=" + nodeName, "--node-ip=" + nodeAddress,
		}},
		{name: "kube-router", args: []string{
			bin("kube-router"), "--kubeconfig=" + pki("kube-router.config"), "--hostname-override=" + nodeName,
			"--run-firewall=true", "--run-router=false", "--run-service-proxy=false", "--run-loadbalancer=false",
			"--service-cluster-ip-range=" + serviceCIDR, "--health-port=0", "--metrics-port=0",
		}},
	}
}

// startDaemons starts everything and waits until a pod could run.
func (c *cluster) startDaemons(ctx context.Context) error {
	if err := c.writeConfigs(); err != nil {
		return err
	}
	all := map[string]daemon{}
	for _, d := range c.daemons() {
		all[d.name] = d
	}
	for _, name := range []string{"etcd", "containerd"} {
		if err := c.startDaemon(all[name]); err != nil {
			return err
		}
	}
	if err := wait(ctx, "containerd", time.Minute, func() error { _, err := c.ctr(ctx, "version"); return err }); err != nil {
		return err
	}
	images := make(chan error, 1)
	go func() { images <- c.importImages(ctx) }()
	if err := c.startDaemon(all["kube-apiserver"]); err != nil {
		return errors.Join(err, <-images)
	}
	err := wait(ctx, "the API server", 2*time.Minute, func() error {
		if err := c.daemonsRun("etcd", "kube-apiserver"); err != nil {
			return err
		}
		_, err := c.kubectl(ctx, "get", "--raw", "/readyz")
		return err
	})
	if err = errors.Join(err, <-images); err != nil {
		return err
	}
	for _, name := range []string{"kube-controller-manager", "kube-scheduler", "kubelet"} {
		if err := c.startDaemon(all[name]); err != nil {
			return err
		}
	}
	// kube-router ends when its node does not exist yet or has no pod network.
	if err := wait(ctx, "the node's pod network", 2*time.Minute, func() error {
		out, err := c.kubectl(ctx, "get", "node", nodeName, "-o", "jsonpath={.spec.podCIDR}")
		if err == nil && out != podCIDR {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	}); err != nil {
		return err
	}
	if err := c.startDaemon(all["kube-router"]); err != nil {
		return err
	}
	if err := wait(ctx, "the node", 2*time.Minute, func() error { return c.ready(ctx) }); err != nil {
		return err
	}
	return wait(ctx, "the default service account", time.Minute, func() error {
		_, err := c.kubectl(ctx, "get", "serviceaccount", "default")
		return err
	})
}

func (c *cluster) startDaemon(d daemon) error {
	log, err := os.OpenFile(c.path("logs", d.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(d.args[0], d.args[1:]...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), d.env...)
	cmd.Stdout, cmd.Stderr = log, log
	// A session of its own: the interrupt that ends the caller must not reach it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s does not start: %w", d.name, err)
	}
	pid := cmd.Process.Pid
	if err := cmd.Process.Release(); err != nil {
		return err
	}
	return os.WriteFile(c.path("pids", d.name), []byte(strconv.Itoa(pid)), 0o644)
}

// pidOf gives the process of a daemon, 0 when it does not run. The number alone is no proof: numbers are used again.
func (c *cluster) pidOf(name string) int {
	text, err := os.ReadFile(c.path("pids", name))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return 0
	}
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil || !strings.Contains(string(line), c.dir+"/") {
		return 0
	}
	return pid
}

// daemonsRun says which daemon is missing, of those named or of all.
func (c *cluster) daemonsRun(names ...string) error {
	if len(names) == 0 {
		for _, d := range c.daemons() {
			names = append(names, d.name)
		}
	}
	for _, name := range names {
		if c.pidOf(name) == 0 {
			return fmt.Errorf("%s does not run; see %s", name, c.path("logs", name+".log"))
		}
	}
	return nil
}

// stopDaemon ends one daemon: TERM first, KILL when that does not help.
func (c *cluster) stopDaemon(ctx context.Context, name string) error {
	pid := c.pidOf(name)
	if pid == 0 {
		return nil
	}
	// One that a test stopped must be able to hear.
	_ = syscall.Kill(pid, syscall.SIGCONT)
	_ = syscall.Kill(pid, syscall.SIGTERM)
	gone := func() error {
		if c.pidOf(name) != 0 {
			return errors.New("still there")
		}
		return nil
	}
	if wait(ctx, name, 10*time.Second, gone) == nil {
		return nil
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	return wait(ctx, name, 10*time.Second, gone)
}

// tails shows the ends of the logs after a failed start.
func (c *cluster) tails() {
	for _, d := range c.daemons() {
		text, err := os.ReadFile(c.path("logs", d.name+".log"))
		if err != nil || len(text) == 0 {
			continue
		}
		lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
		fmt.Fprintf(os.Stderr, "--- %s\n%s\n", d.name, strings.Join(lines[max(0, len(lines)-8):], "\n"))
	}
}
