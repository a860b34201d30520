//go:build unix

package ssmpeer

import (
	"encoding/json"
	"encoding/xml"
	"net/http"
	"net/url"
	"strconv"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

func readForm(body []byte) (url.Values, string) {
	v, err := url.ParseQuery(string(body))
	if err != nil {
		return url.Values{}, ""
	}
	return v, v.Get("Action")
}

// stsError and the results below are the XML of the API of STS, version 2011-06-15.
type stsError struct {
	XMLName xml.Name `xml:"https://sts.amazonaws.com/doc/2011-06-15/ ErrorResponse"`
	Type    string   `xml:"Error>Type"`
	Code    string   `xml:"Error>Code"`
	Message string   `xml:"Error>Message"`
	Request string   `xml:"RequestId"`
}

func write(w http.ResponseWriter, service, action string, answer any, e *apiError) {
	request := randomHex(16)
	w.Header().Set("X-Amzn-Requestid", request)
	switch service {
	case "ssm":
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		if e != nil {
			w.WriteHeader(e.status)
			answer = map[string]string{"__type": e.code, "message": e.message}
		}
		_ = json.NewEncoder(w).Encode(answer)
	case "sts":
		w.Header().Set("Content-Type", "text/xml")
		if e != nil {
			w.WriteHeader(e.status)
			_ = xml.NewEncoder(w).Encode(stsError{Type: "Sender", Code: e.code, Message: e.message, Request: request})
			return
		}
		_ = xml.NewEncoder(w).EncodeElement(answer, xml.StartElement{Name: xml.Name{Space: "https://sts.amazonaws.com/doc/2011-06-15/", Local: action + "Response"}})
	default:
		if e != nil {
			w.WriteHeader(e.status)
			_ = xml.NewEncoder(w).Encode(struct {
				XMLName xml.Name `xml:"Error"`
				Code    string
			}{Code: e.code})
			return
		}
		if b, ok := answer.([]byte); ok {
			_, _ = w.Write(b)
		}
	}
}
