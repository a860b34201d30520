// Package runtimeconfig writes profiles as the `sandbox:` section of Agent Kernel's configuration. It is pure: profiles
// in, texts out. It knows Agent Kernel's keys and neither Terraform nor a backend.
//
// Every key that Agent Kernel knows is written out, so that nothing depends on the defaults of its release. Keys of ours
// that it does not know are left out and listed. What it knows and does not do is a warning.
package runtimeconfig
