// Package plugin is the backend for servers that an Agent Sandbox manifest describes (abx-provider.toml), of the kind
// "rest": they speak E2B's API ("e2b-rest/1"), so that this package reads manifests, holds every call against the
// features that they list, and leaves the rest to the e2b backend.
//
// Facts of the manifest, as far as they are known, stand in manifest.go. What is not known is refused rather than guessed.
package plugin
