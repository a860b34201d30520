// Package workspace keeps the sandboxes of the backends that run code on this machine (local_subprocess, bubblewrap)
// as directories of a per-user data directory:
//
//	<data_dir>/<backend>/            0700, or 0711 where sandboxes run under users of their own
//	    .lock                        held while a sandbox is made
//	    .new-<id>/, .gone-<id>/      half made and half removed; swept by the next Create
//	    <id>/
//	        marker.json   0600       the ownership marker: marks, and the user that the sandbox runs as
//	        env.json      0600       the environment of the sandbox; may hold secrets
//	        closing                  there while the sandbox is being destroyed: no run starts any more
//	        runs/<pid>-<start>       one per process that supervises a run
//	        workspace/               the sandbox's own files
//
// A directory without a valid marker is never touched. Everything below workspace/ is written by code that nobody
// trusts, so every access from outside goes through os.Root: a symbolic link never leads out of it.
package workspace
