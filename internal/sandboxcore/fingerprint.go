package sandboxcore

import (
	"crypto/sha256"
	"encoding/hex"
)

// Fingerprint is the lower-case hex sha256 of a canonical spec.
func Fingerprint(spec string) string {
	sum := sha256.Sum256([]byte(spec))
	return hex.EncodeToString(sum[:])
}
