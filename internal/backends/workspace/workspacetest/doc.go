// Package workspacetest holds the tests that both backends of this machine pass, and what they need.
package workspacetest
