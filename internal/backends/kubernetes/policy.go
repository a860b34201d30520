package kubernetes

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// isolated reports whether a sandbox of p has a policy of its own.
func isolated(p *sandboxcore.Profile) bool {
	return p.Policy.NetworkEgress != sandboxcore.NetworkAllow && optionsOf(p).networkPolicy
}

// egressOf is what a policy lets out. Empty means nothing, which is not what an absent list of peers would mean.
func egressOf(p *sandboxcore.Profile) []networkingv1.NetworkPolicyEgressRule {
	rules := []networkingv1.NetworkPolicyEgressRule{}
	if p.Policy.NetworkEgress != sandboxcore.NetworkAllowlist {
		return rules
	}
	var peers []networkingv1.NetworkPolicyPeer
	for _, entry := range p.Policy.NetworkAllow {
		if sandboxcore.AllowEntryKindOf(entry) == sandboxcore.AllowEntryCIDR {
			peers = append(peers, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: entry}})
		}
	}
	if len(peers) > 0 { // a rule without peers would let everything out
		rules = append(rules, networkingv1.NetworkPolicyEgressRule{To: peers})
	}
	if optionsOf(p).allowDNS {
		udp, tcp, port := corev1.ProtocolUDP, corev1.ProtocolTCP, intstr.FromInt32(53)
		rules = append(rules, networkingv1.NetworkPolicyEgressRule{
			To: []networkingv1.NetworkPolicyPeer{{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: metav1.NamespaceSystem}},
				PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"k8s-app": "kube-dns"}},
			}},
			Ports: []networkingv1.NetworkPolicyPort{{Protocol: &udp, Port: &port}, {Protocol: &tcp, Port: &port}},
		})
	}
	return rules
}

// newPolicy is the policy of one sandbox, owned by it.
func newPolicy(m sandboxcore.Marks, namespace string, egress []networkingv1.NetworkPolicyEgressRule, owner metav1.OwnerReference) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{
			Name: objectName(m), Namespace: namespace, Labels: ownLabels(m, kindPolicy), OwnerReferences: []metav1.OwnerReference{owner},
		},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{sandboxcore.MarkRequest: requestLabel(m), sandboxcore.MarkKind: kindSandbox}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
			Egress:      egress,
		},
	}
}

// lets reports whether the allow-list of p covers an address.
func lets(p *sandboxcore.Profile, addr netip.Addr) bool {
	if p.Policy.NetworkEgress != sandboxcore.NetworkAllowlist {
		return false
	}
	for _, entry := range p.Policy.NetworkAllow {
		if network, err := netip.ParsePrefix(entry); err == nil && network.Contains(addr.Unmap()) {
			return true
		}
	}
	return false
}
