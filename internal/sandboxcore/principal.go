package sandboxcore

import "context"

// UserNamePattern is what the name of a user of a machine looks like (the portable names of POSIX, at most 32 bytes): no
// blank, no leading '-', nothing that means anything to a shell.
const UserNamePattern = `^[A-Za-z_][A-Za-z0-9_.-]{0,31}$`

type principalKey struct{}

// withPrincipal puts the principal of an operation into its context. A principal belongs to the whole operation (the
// run, the files that are taken afterwards), not to one call of a backend.
func withPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalOf gives the principal that an operation is carried out for, to backends with user identity. Operations that
// nobody's identity matters for (a look, a removal) have none.
func PrincipalOf(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(principalKey{}).(Principal)
	return p, ok
}
