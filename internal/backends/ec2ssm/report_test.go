package ec2ssm

import (
	"strings"
	"testing"
)

// FuzzReport: whatever the machine prints, reading it ends, and what is taken for a report of a run has a possible status.
func FuzzReport(f *testing.F) {
	id := strings.Repeat("0", 32)
	say := reportMark + " " + id + " "
	f.Add(say + "exit 3 late 0 left 0 alive 0 from 1.00 to 2.00 out 1 err 0 here 1 0\neA==\n" + say + "out\n" + say + "err\n" + say + "done\n")
	f.Add(say + "fail user\n")
	f.Add(say + "ended left 1 alive 0\n" + say + "done\n")
	f.Add(say + "page out 0 10\n" + say + "out\n" + say + "done")
	f.Add(say + "exit")
	f.Fuzz(func(t *testing.T, text string) {
		if head, err := parseHead(id, text, errNoReport); err == nil && (head.number["exit"] < 0 || head.number["exit"] > 255 || head.cut == nil) {
			t.Errorf("status %d of a head", head.number["exit"])
		}
		r, err := parseReport(id, text)
		if err != nil {
			return
		}
		if r.word == "exit" && len(r.fail) == 0 && (r.number["exit"] < 0 || r.number["exit"] > 255) {
			t.Errorf("status %d", r.number["exit"])
		}
		if r.took < 0 {
			t.Errorf("took %s", r.took)
		}
	})
}
