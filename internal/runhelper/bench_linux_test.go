package runhelper

import (
	"io"
	"os/exec"
	"testing"
)

// BenchmarkTrue is a whole run: start of the helper, of the program, and their ends.
func BenchmarkTrue(b *testing.B) {
	for _, mode := range modes {
		b.Run(mode, func(b *testing.B) {
			helperPath(b)
			for b.Loop() {
				if res, err := Run(b.Context(), start(b, mode).Conn, &Request{Program: []string{"/bin/true"}}, nil, nil); err != nil || res.ExitCode != 0 {
					b.Fatal(res, err)
				}
			}
		})
	}
	b.Run("os/exec", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkOutput256MiB(b *testing.B) {
	const size = 256 << 20
	for _, mode := range modes {
		b.Run(mode, func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				var n slowWriter
				if _, err := Run(b.Context(), start(b, mode).Conn, sh("head -c %d /dev/zero", size), &n, nil); err != nil || n.n != size {
					b.Fatal(n.n, err)
				}
			}
		})
	}
	b.Run("os/exec", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			cmd := exec.Command("sh", "-c", "head -c 268435456 /dev/zero")
			var n slowWriter
			cmd.Stdout = struct{ io.Writer }{&n}
			if err := cmd.Run(); err != nil || n.n != size {
				b.Fatal(n.n, err)
			}
		}
	})
}
