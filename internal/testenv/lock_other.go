//go:build !unix

package testenv

// lockFile locks nothing: there is no test cluster on such systems.
func lockFile(string, bool) (func(), error) { return func() {}, nil }
