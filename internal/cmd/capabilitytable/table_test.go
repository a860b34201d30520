package main

import (
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

func TestTableInReadmeIsFresh(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the table says what backends enforce on Linux; elsewhere some of them declare less")
	}
	content, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	written, err := table(backends.Registry())
	if err != nil {
		t.Fatal(err)
	}
	want, err := replace(string(content), written)
	if err != nil {
		t.Fatal(err)
	}
	if string(content) != want {
		t.Errorf("the table in README.md is stale; run make generate. It should be:\n%s", written)
	}
}

// Fields that the table says in other words.
var saidOtherwise = map[string]string{
	"PolicyNetwork":    "NetworkModes",
	"PolicyFilesystem": "FSRead and FSWrite",
}

func TestEveryCapabilityShows(t *testing.T) {
	shown := func(c sandboxcore.Capabilities) string {
		var out strings.Builder
		for _, row := range rows {
			out.WriteString(row.value(c) + "|")
		}
		return out.String()
	}
	none := shown(sandboxcore.Capabilities{})
	for i := range reflect.TypeFor[sandboxcore.Capabilities]().NumField() {
		var declared sandboxcore.Capabilities
		field := reflect.ValueOf(&declared).Elem().Field(i)
		name := reflect.TypeFor[sandboxcore.Capabilities]().Field(i).Name
		switch field.Kind() {
		case reflect.Bool:
			field.SetBool(true)
		case reflect.String:
			field.SetString("something")
		case reflect.Slice:
			field.Set(reflect.MakeSlice(field.Type(), 1, 1))
			field.Index(0).SetString("something")
		default:
			t.Fatalf("%s: a kind of field that this test does not know: %s", name, field.Kind())
		}
		if _, otherwise := saidOtherwise[name]; !otherwise && shown(declared) == none {
			t.Errorf("the table does not show %s", name)
		}
	}
}

func TestReplace(t *testing.T) {
	got, err := replace("a\n"+begin+"old\n"+end+"z\n", "new\n")
	if err != nil || got != "a\n"+begin+"\nnew\n\n"+end+"z\n" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, text := range []string{"", begin, end, end + begin} {
		if _, err := replace(text, "new\n"); err == nil {
			t.Errorf("no error for %q, which lacks a marker", text)
		}
	}
}
