package sandboxcore

import (
	"context"
	"time"
)

// CleanupTimeout is how long one cleanup may take.
const CleanupTimeout = 60 * time.Second

// WithCleanup runs fn with a context that keeps the values of ctx but neither its cancellation nor its deadline, and
// that ends after CleanupTimeout. Every cleanup goes through it, so that an interrupt never leaves an orphan because
// the cleanup itself was cancelled.
func WithCleanup(ctx context.Context, fn func(context.Context) error) error {
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanupTimeout)
	defer cancel()
	return fn(detached)
}
