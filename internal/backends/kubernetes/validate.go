package kubernetes

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// defaultCaps are the capabilities that container engines give to ordinary containers. None of them leads out of a
// container; each beyond them would make the isolation tier or the end of a run a lie.
var defaultCaps = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW",
	"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

// Validate gives the refusals that only this backend knows.
func (b *backend) Validate(p *sandboxcore.Profile) []*sandboxcore.Error {
	if p.Environment == sandboxcore.EnvironmentAttached {
		return validateAttached(p)
	}
	v := &validator{p: p, o: optionsOf(p)}
	v.image()
	v.labels()
	v.isolation()
	v.network()
	v.paths()
	v.security()
	v.workload()
	return v.found
}

type validator struct {
	p     *sandboxcore.Profile
	o     options
	found []*sandboxcore.Error
}

func (v *validator) refuse(code sandboxcore.Code, said, next string, attribute ...string) {
	v.found = append(v.found, &sandboxcore.Error{
		Code: code, Attempted: "the kubernetes profile was refused", Object: v.p.Name, Said: said, Next: next, Attribute: attribute,
	})
}

func (v *validator) image() {
	if v.o.image == "" || strings.ContainsAny(v.o.image, " \t\n") || strings.HasPrefix(v.o.image, "-") {
		v.refuse(sandboxcore.CodeValue, fmt.Sprintf("%q is no image reference.", v.o.image), "Use name:tag or name@sha256:digest.", "kubernetes", keyImage)
	}
}

func (v *validator) labels() {
	for attribute, m := range map[string]map[string]string{keyLabels: v.o.labels, keyNodeSelector: v.o.nodeSelector} {
		for k, value := range m {
			if !validLabel(k, value) {
				v.refuse(sandboxcore.CodeValue, fmt.Sprintf("%q = %q cannot be a label in Kubernetes.", k, value),
					"A key is [prefix/]name, a value has at most 63 letters, digits, '-', '_' and '.'.", "kubernetes", attribute)
			}
			if attribute == keyLabels && (strings.HasPrefix(k, prefix) || k == managedByLabel) {
				v.refuse(sandboxcore.CodeValue, fmt.Sprintf("The label %q belongs to this provider.", k), "Use another key.", "kubernetes", attribute)
			}
		}
	}
	for k := range v.o.env {
		if errs := validation.IsEnvVarName(k); len(errs) > 0 {
			v.refuse(sandboxcore.CodeValue, fmt.Sprintf("%q cannot be a variable of a pod.", k), "Use letters, digits, '_', '-' and '.', not starting with a digit.", "kubernetes", keyEnv)
		}
	}
}

func (v *validator) isolation() {
	if v.o.isolation != "" && v.o.runtimeClass == "" {
		v.refuse(sandboxcore.CodeValue, "An isolation tier can be asserted only for a runtime class that is named.", "Set runtime_class_name as well, or remove isolation.", "kubernetes", keyIsolation)
	}
}

func (v *validator) network() {
	if v.o.allowDNS && v.p.Policy.NetworkEgress != sandboxcore.NetworkAllowlist {
		v.refuse(sandboxcore.CodeValue, "network_allow_dns opens an allow-list for the cluster's DNS, and there is none.", "Set network_egress = \"allowlist\", or remove it.", "kubernetes", keyAllowDNS)
	}
	for _, entry := range v.p.Policy.NetworkAllow {
		// An address of the other family inside one of this family would be understood differently by each network.
		if network, err := netip.ParsePrefix(entry); err == nil && network.Addr().Is4In6() {
			v.refuse(sandboxcore.CodeAllowEntry, fmt.Sprintf("%q is an IPv4 network in IPv6 clothes.", entry), "Write it as an IPv4 network.", "policy", "network_allow")
		}
	}
}

func (v *validator) paths() {
	for _, w := range v.p.Policy.FSAllowWrite {
		if said := writablePathProblem(w); said != "" {
			v.refuse(sandboxcore.CodeFilesystem, said, "Name a directory for data, such as /workspace.", "policy", "fs_allow_write")
		}
	}
	if v.o.workspaceClaim != "" && !slices.Contains(writablePaths(v.p), sandboxcore.Workspace) {
		v.refuse(sandboxcore.CodeValue, "workspace_claim is for "+sandboxcore.Workspace+", which fs_allow_write does not hold.", "Add "+sandboxcore.Workspace+" to fs_allow_write, or remove it.", "kubernetes", keyWorkspaceClaim)
	}
}

func (v *validator) security() {
	for _, c := range v.o.container.Strings(keyCapabilities) {
		if !slices.Contains(defaultCaps, c) {
			v.refuse(sandboxcore.CodeValue, fmt.Sprintf("The capability %q would undo what this backend promises.", c),
				"Only these can be given back: "+strings.Join(defaultCaps, ", ")+".", "kubernetes", keyContainerSecurity, keyCapabilities)
		}
	}
	if v.o.user() == 0 && v.o.pod.Bool(keyRunAsNonRoot, false) {
		v.refuse(sandboxcore.CodeValue, "run_as_user is root and run_as_non_root forbids root.", "Remove one of them.", "kubernetes", keyPodSecurity, keyRunAsNonRoot)
	}
}

func (v *validator) workload() {
	if v.o.workload == workloadSandbox && v.o.workspaceClaim != "" {
		v.refuse(sandboxcore.CodeValue, "A sandbox of this workload has a claim of its own.", "Remove workspace_claim, or use workload = \"pod\".", "kubernetes", keyWorkspaceClaim)
	}
	if v.o.workload != workloadSandbox && v.o.storageClass != "" {
		v.refuse(sandboxcore.CodeValue, "workspace_storage_class is for the claim that workload = \"sandbox\" makes.", "Remove it, or name an existing claim with workspace_claim.", "kubernetes", keyStorageClass)
	}
}

// writablePathProblem says why a path cannot be one of the writable ones; empty if it can.
func writablePathProblem(p string) string {
	clean := path.Clean(p)
	switch {
	case !strings.HasPrefix(p, "/"):
		return fmt.Sprintf("%q is not absolute.", p)
	case clean == "/":
		return "The root itself cannot be a writable path of a read-only root."
	case strings.ContainsAny(p, ":\x00"):
		return fmt.Sprintf("%q holds a character that cannot be in a mount.", p)
	}
	for _, reserved := range []string{"/proc", "/sys", "/dev", helperDir, envDir} {
		if within(clean, reserved) || within(reserved, clean) {
			return fmt.Sprintf("%q belongs to the container itself.", p)
		}
	}
	return ""
}
