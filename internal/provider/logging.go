package provider

import (
	"io"
	"log/slog"
	"strings"
)

// LogHandler writes log entries of the engine and the backends, which know nothing of Terraform, in the form in which
// Terraform takes them from the standard error stream of a provider. What is shown of them TF_LOG decides.
func LogHandler(w io.Writer) slog.Handler {
	return slog.NewJSONHandler(w, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) > 0 {
				return a
			}
			switch a.Key {
			case slog.TimeKey:
				a.Key = "@timestamp"
			case slog.MessageKey:
				a.Key = "@message"
			case slog.LevelKey:
				a = slog.String("@level", strings.ToLower(a.Value.String()))
			}
			return a
		},
	})
}
