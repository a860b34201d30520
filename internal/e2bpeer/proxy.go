//go:build linux

package e2bpeer

import (
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const portEnvd = 49983

// pathURL is the address of a daemon by path.
func (p *Peer) pathURL(id string) string {
	return p.proxyURL + "/sandbox/" + id + "/" + strconv.Itoa(portEnvd)
}

// proxyRequest is the proxy in front of the sandboxes. The headers that name a sandbox count only where the Host is
// sandbox.*, localhost or an address.
func (p *Peer) proxyRequest(w http.ResponseWriter, r *http.Request) {
	id, port := "", 0
	if rest, ok := strings.CutPrefix(r.URL.Path, "/sandbox/"); ok { // by path, as some servers route
		parts := strings.SplitN(rest, "/", 3)
		if len(parts) == 3 {
			r.Header.Set("E2b-Sandbox-Id", parts[0])
			r.Header.Set("E2b-Sandbox-Port", parts[1])
			r.URL.Path = "/" + parts[2]
		}
	}
	host := r.Host
	if h, _, ok := strings.Cut(host, ":"); ok {
		host = h
	}
	if label, ok := strings.CutSuffix(host, "."+p.opt.Domain); ok && label != "sandbox" {
		number, rest, _ := strings.Cut(label, "-")
		id = rest
		port, _ = strconv.Atoi(number)
	} else if strings.HasPrefix(host, "sandbox.") || host == "localhost" || isAddress(host) {
		id = r.Header.Get("E2b-Sandbox-Id")
		port, _ = strconv.Atoi(r.Header.Get("E2b-Sandbox-Port"))
	}
	lost := func(status int, message string, more map[string]any) {
		if !strings.Contains(r.Header.Get("Accept"), "application/json") && r.Header.Get("Accept") != "" && strings.Contains(r.Header.Get("Accept"), "text/html") {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(status)
			_, _ = w.Write([]byte("<!DOCTYPE html><title>" + message + "</title>"))
			return
		}
		out := map[string]any{"sandboxId": id, "message": message, "code": status}
		maps.Copy(out, more)
		writeJSON(w, status, out)
	}
	if id == "" || port == 0 {
		fail(w, http.StatusBadRequest, "Invalid host")
		return
	}
	b := p.find(id)
	if b == nil {
		lost(http.StatusBadGateway, "The sandbox was not found", nil)
		return
	}
	if b.status() != stateRunning {
		if !b.autoResume {
			lost(http.StatusBadGateway, "The sandbox was not found", nil)
			return
		}
		b.resume()
		p.mu.Lock()
		b.end = p.opt.Now().Add(5 * time.Minute)
		p.mu.Unlock()
	}
	if b.traffic != "" && r.Header.Get("E2B-Traffic-Access-Token") != b.traffic {
		lost(http.StatusForbidden, "Missing or invalid traffic access token", nil)
		return
	}
	if port == portInterpreter && b.template == interpreterTemplate && !p.opt.Plain {
		b.interpreterHandler().ServeHTTP(w, r)
		return
	}
	if port != portEnvd || p.opt.Plain {
		lost(http.StatusBadGateway, "The sandbox is running but port is not open", map[string]any{"port": port})
		return
	}
	p.envd(b, w, r)
}

// envd is the daemon inside a sandbox.
func (p *Peer) envd(b *box, w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if r.URL.Path == "/init" {
		http.NotFound(w, r)
		return
	}
	if b.token != "" && r.Header.Get("X-Access-Token") != b.token && (r.URL.Path != "/files" || !b.signed(r)) {
		// Not Connect's form, on Connect's own calls neither.
		fail(w, http.StatusUnauthorized, "unauthorized access, please provide a valid access token or method signing if supported")
		return
	}
	switch r.URL.Path {
	case "/files":
		b.files(w, r)
	case "/envs":
		writeJSON(w, http.StatusOK, b.envs)
	case "/metrics":
		writeJSON(w, http.StatusOK, map[string]any{"ts": p.opt.Now().Unix(), "cpu_count": 2, "cpu_used_pct": 1.5, "mem_total": 1 << 29, "mem_used": 1 << 26})
	default:
		b.rpc().ServeHTTP(w, r)
	}
}

// signed checks the signature of a file URL: "v1_" and the unpadded standard base64 of the sha256 of path, operation, user,
// token and expiration, joined by colons.
func (b *box) signed(r *http.Request) bool {
	q := r.URL.Query()
	operation := "read"
	if r.Method == http.MethodPost {
		operation = "write"
	}
	text := q.Get("path") + ":" + operation + ":" + q.Get("username") + ":" + b.token
	if e := q.Get("signature_expiration"); e != "" {
		until, err := strconv.ParseInt(e, 10, 64)
		if err != nil || b.p.opt.Now().Unix() > until {
			return false
		}
		text += ":" + e
	}
	sum := sha256.Sum256([]byte(text))
	return q.Get("signature") == "v1_"+base64.RawStdEncoding.EncodeToString(sum[:])
}
