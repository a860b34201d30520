// Package local runs code as plain processes of the user that runs the provider (backend local_subprocess, isolation
// none). It has the life cycle of a sandbox and no boundary: such code can do whatever that user can, read the
// provider's memory included. It is for trying things out and for code that is trusted anyway.
//
// What it still promises: the code gets a minimal environment and never the provider's, a working directory of its own,
// and its end; on Linux the run helper supervises every run and kills its whole tree.
package local
