package workspace

import (
	"context"
	"io/fs"
	"sync"
)

// checkOwner: the access control lists of a profile directory keep other users out on Windows.
func checkOwner(string, fs.FileInfo) error { return nil }

var locks sync.Mutex

// lock keeps apart what this process makes. What another process of the same user makes at the same moment has a
// random name of its own; only the sweep of half-made directories could meet it, which is why sweeping one fails as
// long as a file in it is open.
func (s *Store) lock(context.Context) (func(), error) {
	locks.Lock()
	return locks.Unlock, nil
}

// syncDir: directories cannot be synced on Windows.
func syncDir(string) error { return nil }

const openFlags = 0
