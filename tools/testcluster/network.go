package main

import (
	"context"
	"os"
	"strings"
)

// chain is the packet filter chain that lets pod traffic through. A Docker engine on the same machine drops what it
// does not know.
const chain = "AGENTKERNEL-TESTCLUSTER"

// makeNetwork makes the link with the node's address and lets traffic of pods through.
func (c *cluster) makeNetwork(ctx context.Context) error {
	for _, args := range [][]string{
		{"ip", "link", "add", nodeLink, "type", "bridge"},
		{"ip", "address", "add", nodeAddress + "/32", "dev", nodeLink},
		{"ip", "link", "set", nodeLink, "up"},
		{"iptables", "-w", "-N", chain},
		{"iptables", "-w", "-A", chain, "-i", podLink, "-j", "ACCEPT"},
		{"iptables", "-w", "-A", chain, "-o", podLink, "-j", "ACCEPT"},
		{"iptables", "-w", "-A", "FORWARD", "-j", chain},
	} {
		if _, err := output(ctx, "", args[0], args[1:]...); err != nil {
			return err
		}
	}
	for file, value := range map[string]string{"/proc/sys/net/ipv4/ip_forward": "1", "/proc/sys/net/bridge/bridge-nf-call-iptables": "1"} {
		now, err := os.ReadFile(file)
		if err == nil && strings.TrimSpace(string(now)) == value {
			continue
		}
		if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// removeNetwork removes links, rules and sets, those that the kubelet, kube-router and the CNI plugins made included.
func (c *cluster) removeNetwork(ctx context.Context) {
	for _, link := range []string{podLink, nodeLink} {
		_, _ = output(ctx, "", "ip", "link", "delete", link)
	}
	for _, program := range []string{"iptables", "ip6tables"} {
		for _, table := range []string{"filter", "nat", "mangle"} {
			cleanTable(ctx, program, table)
		}
	}
	sets, err := output(ctx, "", "ipset", "list", "-name")
	if err != nil {
		return
	}
	for name := range strings.FieldsSeq(sets) {
		if strings.HasPrefix(name, "KUBE-") || strings.HasPrefix(name, "kube-router-") || strings.HasPrefix(name, "inet6:") {
			_, _ = output(ctx, "", "ipset", "destroy", name)
		}
	}
}

func ourChain(name string) bool {
	return name == chain || strings.HasPrefix(name, "KUBE-") || strings.HasPrefix(name, "CNI-")
}

// cleanTable removes our chains one by one: whoever else changes the table at the same time loses nothing.
func cleanTable(ctx context.Context, program, table string) {
	text, err := output(ctx, "", program+"-save", "-t", table)
	if err != nil {
		return
	}
	var chains []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, ":") && ourChain(strings.TrimPrefix(fields[0], ":")):
			chains = append(chains, strings.TrimPrefix(fields[0], ":"))
		case len(fields) > 2 && fields[0] == "-A" && !ourChain(fields[1]) && mentionsOurs(fields):
			// The text is what iptables itself printed; a shell takes its quoting apart.
			_, _ = output(ctx, "", "sh", "-c", program+" -w -t "+table+" -D "+strings.TrimSpace(strings.TrimPrefix(line, "-A")))
		}
	}
	for _, action := range []string{"-F", "-X"} {
		for _, name := range chains {
			_, _ = output(ctx, "", program, "-w", "-t", table, action, name)
		}
	}
}

func mentionsOurs(fields []string) bool {
	for i, f := range fields {
		if (f == "-j" || f == "-g") && i+1 < len(fields) && ourChain(fields[i+1]) {
			return true
		}
	}
	return false
}
