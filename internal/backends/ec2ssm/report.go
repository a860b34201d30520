package ec2ssm

import (
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// report is what the script on the machine printed. It ran beside code that nobody trusts and that may be root there, so
// everything in it is read strictly; what does not fit is no report.
type report struct {
	// fail is why nothing ran; empty otherwise.
	fail []string
	// word is the first word of the first line: "exit", "stored", "page", "ended", "file", "removed".
	word   string
	number map[string]int64
	took   time.Duration
	// sum is the digest of a file, lower-case hex.
	sum   string
	parts map[string][]byte
	// cut is why the rest of the streams did not come; nil when nothing is missing.
	cut error
}

var sumPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

var errNoReport = errors.New("the machine sent no complete report")

// parseReport reads the standard output of one command.
func parseReport(id, text string) (*report, error) {
	r := &report{number: map[string]int64{}, parts: map[string][]byte{}}
	var encoded strings.Builder
	complete := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		mine, ok := strings.CutPrefix(line, reportMark+" "+id+" ")
		if !ok {
			if r.word != "" && line != "" {
				encoded.WriteString(line)
			}
			continue
		}
		words := strings.Fields(mine)
		switch {
		case len(words) == 0:
			return nil, errNoReport
		case words[0] == "fail":
			r.fail = append([]string{}, words[1:]...)
			if len(r.fail) == 0 {
				return nil, errNoReport
			}
			return r, nil
		case words[0] == "done" || words[0] == "stored":
			if words[0] == "stored" {
				r.word = "stored"
			}
			complete = true
		case words[0] == "out" || words[0] == "err":
			raw, err := base64.StdEncoding.DecodeString(encoded.String())
			if err != nil {
				return nil, fmt.Errorf("%w: a part of it is no base64", errNoReport)
			}
			r.parts[words[0]] = raw
			encoded.Reset()
		case r.word == "":
			r.word = words[0]
			if err := r.read(words); err != nil {
				return nil, err
			}
		default:
			return nil, errNoReport
		}
	}
	if !complete {
		return nil, errNoReport
	}
	return r, nil
}

// parseHead reads the beginning of a report of a run: how it ended, and what is there of both streams. why is why there is no
// more of it.
func parseHead(id, text string, why error) (*report, error) {
	r := &report{number: map[string]int64{}, parts: map[string][]byte{}, cut: why}
	stream, encoded := "out", map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		mine, ok := strings.CutPrefix(line, reportMark+" "+id+" ")
		switch {
		case r.word == "" && !ok:
		case r.word == "":
			words := strings.Fields(mine)
			if len(words) == 0 || words[0] != "exit" {
				return nil, errNoReport
			}
			r.word = "exit"
			if err := r.read(words); err != nil {
				return nil, err
			}
		case ok && mine == "out":
			stream = "err"
		case !strings.HasPrefix(line, reportMark):
			encoded[stream] += line
		}
	}
	if r.word == "" {
		return nil, errNoReport
	}
	for _, name := range []string{"out", "err"} {
		whole := encoded[name][:len(encoded[name])/4*4]
		raw, err := base64.StdEncoding.DecodeString(whole)
		if err != nil {
			return nil, fmt.Errorf("%w: a part of it is no base64", errNoReport)
		}
		r.parts[name], r.number["here "+name] = raw, int64(len(raw))
	}
	return r, nil
}

// read takes the numbers of the first line: "exit 3 late 0 ... from 10.02 to 11.30 ... here 5 6", "ended left 0 alive 0".
func (r *report) read(words []string) error {
	var from, to float64
	for i := 0; i < len(words); i++ {
		var err error
		value := func(n int) string {
			if i+n < len(words) {
				return words[i+n]
			}
			return ""
		}
		switch words[i] {
		case "mode":
			r.number["mode"], err = strconv.ParseInt(value(1), 8, 64)
			i++
		case "sum":
			if r.sum = value(1); !sumPattern.MatchString(r.sum) {
				return errNoReport
			}
			i++
		case "exit", "late", "left", "alive", "out", "err", "size":
			if r.word == "page" {
				continue
			}
			r.number[words[i]], err = strconv.ParseInt(value(1), 10, 64)
			i++
		case "from":
			from, err = strconv.ParseFloat(value(1), 64)
			i++
		case "to":
			to, err = strconv.ParseFloat(value(1), 64)
			i++
		case "here":
			r.number["here out"], err = strconv.ParseInt(value(1), 10, 64)
			if err == nil {
				r.number["here err"], err = strconv.ParseInt(value(2), 10, 64)
			}
			i += 2
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errNoReport, err)
		}
	}
	for _, n := range r.number {
		if n < 0 {
			return errNoReport
		}
	}
	if r.word == "exit" && r.number["exit"] > 255 {
		return errNoReport
	}
	if to > from {
		r.took = time.Duration((to - from) * float64(time.Second)).Round(10 * time.Millisecond)
	}
	return nil
}
