// Package supervised runs the engine's requests through the run helper, for every backend that can start it: it turns a
// sandboxcore.RunRequest into one of package runhelper, and what comes back into results and errors with codes.
//
// A backend gives a Target whose Open starts one helper inside the sandbox. Everything else (interpreters, timeouts,
// kills, files, the distinction between a program's exit status and a failure of the machinery) is the same everywhere.
package supervised
