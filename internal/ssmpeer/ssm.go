//go:build unix

package ssmpeer

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// Limits of the API reference of SendCommand and of the quotas of Systems Manager.
const (
	maxDocument   = 64 << 10
	stdoutLimit   = 24_000
	stderrLimit   = 8_000
	listLimit     = 2_500
	minDelivery   = 30
	maxDelivery   = 2_592_000
	maxExecution  = 172_800
	defaultExec   = 3_600
	shellDocument = "AWS-RunShellScript"
)

var (
	instanceID = regexp.MustCompile(`^(i-(\w{8}|\w{17})|mi-\w{17})$`)
	documentID = regexp.MustCompile(`^[a-zA-Z0-9_\-.:/]{3,128}$`)
	commandID  = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	reference  = regexp.MustCompile(`\{\{\s*[\w:./-]+\s*\}\}`)
	seconds    = regexp.MustCompile(`^[1-9][0-9]{0,5}$`)
)

func (p *Peer) ssm(_ *credential, action string, body []byte) (any, map[string]any, *apiError) {
	var params map[string]any
	if err := json.Unmarshal(body, &params); err != nil {
		return nil, nil, refuse("SerializationException", "%v", err)
	}
	var out any
	var e *apiError
	switch action {
	case "DescribeInstanceInformation":
		out, e = p.describe(body)
	case "SendCommand":
		out, e = p.sendCommand(body)
	case "GetCommandInvocation":
		out, e = p.getInvocation(body)
	case "ListCommandInvocations":
		out, e = p.listInvocations(body)
	case "CancelCommand":
		out, e = p.cancelCommand(body)
	default:
		e = refuse("UnknownOperationException", "")
	}
	return out, params, e
}

// strictly decodes a request; what this peer does not know is refused, so that no parameter is ignored in silence.
func strictly[T any](body []byte) (T, *apiError) {
	var in T
	if err := json.Unmarshal(body, &in); err != nil {
		return in, refuse("ValidationException", "%v", err)
	}
	return in, nil
}

func (p *Peer) describe(body []byte) (any, *apiError) {
	in, e := strictly[struct {
		Filters []struct {
			Key    string
			Values []string
		}
		MaxResults *int
		NextToken  string
	}](body)
	if e != nil {
		return nil, e
	}
	if in.MaxResults != nil && (*in.MaxResults < 5 || *in.MaxResults > 50) {
		return nil, refuse("ValidationException", "maxResults must be 5 to 50")
	}
	p.Lock()
	defer p.Unlock()
	list := []any{}
	for _, id := range slices.Sorted(mapKeys(p.machines)) {
		m := p.machines[id]
		match := true
		for _, f := range in.Filters {
			if f.Key != "InstanceIds" || len(f.Values) == 0 {
				return nil, refuse("InvalidInstanceInformationFilterValue", "")
			}
			for _, v := range f.Values {
				if !instanceID.MatchString(v) {
					return nil, refuse("InvalidInstanceId", "%s", v)
				}
			}
			match = match && slices.Contains(f.Values, id)
		}
		if match {
			list = append(list, m.information())
		}
	}
	return map[string]any{"InstanceInformationList": list}, nil
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

type sendInput struct {
	DocumentName       string
	DocumentVersion    string
	InstanceIDs        []string `json:"InstanceIds"`
	Targets            []any
	Parameters         map[string][]string
	TimeoutSeconds     *int
	Comment            string
	OutputS3BucketName string
	OutputS3KeyPrefix  string
	OutputS3Region     string
}

func (p *Peer) sendCommand(body []byte) (any, *apiError) {
	in, e := strictly[sendInput](body)
	if e != nil {
		return nil, e
	}
	size := 0
	for k, v := range in.Parameters {
		size += len(k)
		for _, s := range v {
			size += len(s)
		}
	}
	switch {
	case !documentID.MatchString(in.DocumentName):
		return nil, refuse("ValidationException", "documentName")
	case len(in.InstanceIDs) == 0 && len(in.Targets) == 0 || len(in.InstanceIDs) > 50:
		return nil, refuse("ValidationException", "instanceIds")
	case in.TimeoutSeconds != nil && (*in.TimeoutSeconds < minDelivery || *in.TimeoutSeconds > maxDelivery):
		return nil, refuse("ValidationException", "1 validation error detected: Value '%d' at 'timeoutSeconds' failed to satisfy constraint: 30 to 2592000", *in.TimeoutSeconds)
	case len(in.Comment) > 100:
		return nil, refuse("ValidationException", "comment")
	case in.OutputS3BucketName != "" && !bucketName.MatchString(in.OutputS3BucketName), in.OutputS3KeyPrefix != "" && in.OutputS3BucketName == "", len(in.OutputS3KeyPrefix) > 500:
		return nil, refuse("InvalidOutputFolder", "The S3 bucket doesn't exist.")
	case size > maxDocument:
		return nil, refuse("MaxDocumentSizeExceeded", "The size limit of a document is 64 KB.")
	}
	for i, id := range in.InstanceIDs {
		if !instanceID.MatchString(id) {
			return nil, refuse("ValidationException", "Value '%s' at 'instanceIds' failed to satisfy constraint", id)
		}
		if slices.Contains(in.InstanceIDs[:i], id) {
			return nil, refuse("DuplicateInstanceId", "%s", id)
		}
	}
	if in.DocumentName != shellDocument {
		return nil, refuse("InvalidDocument", "Document %s does not exist in your account", in.DocumentName)
	}
	exec := defaultExec
	for name, values := range in.Parameters {
		// References to Parameter Store are resolved in every value before the command is sent, and there are none here.
		for _, v := range values {
			if reference.MatchString(v) {
				return nil, refuse("InvalidParameters", "Parameter Store references are not resolved: %s", reference.FindString(v))
			}
		}
		switch name {
		case "commands", "workingDirectory":
		case "executionTimeout":
			if len(values) != 1 || !seconds.MatchString(values[0]) {
				return nil, refuse("InvalidParameters", "executionTimeout")
			}
			exec, _ = strconv.Atoi(values[0])
			if exec > maxExecution {
				return nil, refuse("InvalidParameters", "executionTimeout is at most 172800")
			}
		default:
			return nil, refuse("InvalidParameters", "Parameter \"%s\" is not defined in the document", name)
		}
	}
	if len(in.Parameters["commands"]) == 0 {
		return nil, refuse("InvalidParameters", "commands")
	}
	p.Lock()
	defer p.Unlock()
	for _, id := range in.InstanceIDs {
		if m := p.machines[id]; m == nil || m.Ping == "Inactive" {
			return nil, refuse("InvalidInstanceId", "Instances [[%s]] not in a valid state for account %s", id, Account)
		}
	}
	c := p.newCommand(in, exec)
	return map[string]any{"Command": map[string]any{
		"CommandId": c.id, "DocumentName": in.DocumentName, "InstanceIds": in.InstanceIDs, "Status": "Pending", "StatusDetails": "Pending",
		"Comment": in.Comment, "RequestedDateTime": float64(time.Now().Unix()), "TargetCount": len(in.InstanceIDs), "Parameters": in.Parameters,
	}}, nil
}

type invocationInput struct {
	CommandID  string `json:"CommandId"`
	InstanceID string `json:"InstanceId"`
	PluginName string
}

func (p *Peer) getInvocation(body []byte) (any, *apiError) {
	in, e := strictly[invocationInput](body)
	if e != nil {
		return nil, e
	}
	if len(in.CommandID) != 36 || !instanceID.MatchString(in.InstanceID) {
		return nil, refuse("ValidationException", "commandId, instanceId")
	}
	p.Lock()
	c := p.commands[in.CommandID]
	p.Unlock()
	if c == nil || !slices.Contains(c.in.InstanceIDs, in.InstanceID) {
		return nil, refuse("InvocationDoesNotExist", "")
	}
	s, known := c.next()
	if !known {
		return nil, refuse("InvocationDoesNotExist", "")
	}
	out := map[string]any{
		"CommandId": in.CommandID, "InstanceId": in.InstanceID, "Comment": c.in.Comment, "DocumentName": c.in.DocumentName, "PluginName": "aws:runShellScript",
		"ResponseCode": s.Code, "Status": s.Status, "StatusDetails": s.Details, "StandardOutputContent": "", "StandardErrorContent": "",
		"StandardOutputUrl": "", "StandardErrorUrl": "", "ExecutionStartDateTime": "", "ExecutionElapsedTime": "", "ExecutionEndDateTime": "",
	}
	if s.terminal() {
		out["StandardOutputContent"], out["StandardErrorContent"] = cut(s.Stdout, stdoutLimit), cut(s.Stderr, stderrLimit)
	}
	if c.in.OutputS3BucketName != "" {
		base := "https://s3." + p.Region + ".amazonaws.com/" + c.key(in.InstanceID)
		out["StandardOutputUrl"], out["StandardErrorUrl"] = base+"stdout", base+"stderr"
	}
	if s.CommandID != "" { // an answer about another command
		out["CommandId"] = s.CommandID
	}
	return out, nil
}

// cut keeps the first n characters.
func cut(s string, n int) string {
	r := []rune(s)
	if len(r) > n {
		return string(r[:n])
	}
	return s
}

func (p *Peer) listInvocations(body []byte) (any, *apiError) {
	in, e := strictly[struct {
		CommandID string `json:"CommandId"`
		Details   bool
	}](body)
	if e != nil {
		return nil, e
	}
	p.Lock()
	c := p.commands[in.CommandID]
	p.Unlock()
	list := []any{}
	if c != nil {
		if s, known := c.next(); known {
			list = append(list, map[string]any{
				"CommandId": c.id, "InstanceId": c.in.InstanceIDs[0], "Status": s.Status, "StatusDetails": s.Details,
				"CommandPlugins": []any{map[string]any{"Name": "aws:runShellScript", "ResponseCode": s.Code, "Output": cut(s.Stdout, listLimit)}},
			})
		}
	}
	return map[string]any{"CommandInvocations": list}, nil
}

func (p *Peer) cancelCommand(body []byte) (any, *apiError) {
	in, e := strictly[struct {
		CommandID   string   `json:"CommandId"`
		InstanceIDs []string `json:"InstanceIds"`
	}](body)
	if e != nil {
		return nil, e
	}
	if !commandID.MatchString(in.CommandID) {
		return nil, refuse("ValidationException", "commandId")
	}
	p.Lock()
	c := p.commands[in.CommandID]
	p.Unlock()
	if c == nil {
		return nil, refuse("InvalidCommandId", "")
	}
	c.cancel()
	return map[string]any{}, nil
}
