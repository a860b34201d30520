// Package tools exists so that this module has a package: its programs are declared with `tool` lines in go.mod and
// compiled by build-tool.sh.
package tools
