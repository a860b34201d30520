package provider_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/provider"
)

func TestLogEntriesAreInTheFormThatTerraformReads(t *testing.T) {
	var out bytes.Buffer
	slog.New(provider.LogHandler(&out)).With("image", "x").Warn("pulling", slog.Group("progress", "time", 3))
	var entry struct {
		Time     time.Time `json:"@timestamp"`
		Level    string    `json:"@level"`
		Message  string    `json:"@message"`
		Image    string    `json:"image"`
		Progress struct{ Time int }
	}
	if err := json.Unmarshal(out.Bytes(), &entry); err != nil {
		t.Fatal(err)
	}
	if entry.Time.IsZero() || entry.Level != "warn" || entry.Message != "pulling" || entry.Image != "x" || entry.Progress.Time != 3 {
		t.Errorf("%s", out.String())
	}
}
