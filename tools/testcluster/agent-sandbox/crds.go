// Package agentsandbox pins the version of kubernetes-sigs/agent-sandbox whose custom resource definitions the tests
// put on the test cluster. They are read from the module itself:
//
//	go -C tools/testcluster/agent-sandbox list -m -f '{{.Dir}}/k8s/crds' sigs.k8s.io/agent-sandbox
package agentsandbox

import _ "sigs.k8s.io/agent-sandbox/api/v1beta1" // keeps the requirement
