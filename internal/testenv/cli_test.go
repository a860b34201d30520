package testenv

import (
	"strings"
	"testing"
)

func TestReadVersion(t *testing.T) {
	for _, test := range []struct{ name, text, structured, want, wrong string }{
		{"terraform", "Terraform v1.11.4\non linux_amd64\n", `{"terraform_version": "1.11.4"}`, "Terraform 1.11.4", ""},
		// OpenTofu's own key for its version is Terraform's.
		{"opentofu", "OpenTofu v1.12.6\non linux_amd64\n", `{"terraform_version": "1.12.6"}`, "OpenTofu 1.12.6", ""},
		{"alpha", "Terraform v1.17.0-alpha20261001\n", `{"terraform_version": "1.17.0-alpha20261001"}`, "Terraform 1.17.0-alpha20261001", ""},
		{"another program", "Terragrunt v1.2.3\n", `{"terraform_version": "1.2.3"}`, "", "neither"},
		{"no version", "Terraform v\n", `{"terraform_version": ""}`, "", "calls its version"},
		{"no JSON", "Terraform v1.11.4\n", "usage", "", "does not tell"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cli, err := readVersion("program", []byte(test.text), []byte(test.structured))
			switch {
			case test.wrong != "":
				if err == nil || !strings.Contains(err.Error(), test.wrong) {
					t.Errorf("error %v, want one with %q", err, test.wrong)
				}
			case err != nil:
				t.Error(err)
			case cli.String() != test.want || cli.OpenTofu != strings.HasPrefix(test.want, "OpenTofu"):
				t.Errorf("%+v, want %s", cli, test.want)
			}
		})
	}
}

func TestFeatureOfProgram(t *testing.T) {
	for _, test := range []struct {
		cli                 CLI
		terraform, openTofu int
		has                 bool
	}{
		{CLI{Major: 1, Minor: 11}, 10, 11, true},
		{CLI{Major: 1, Minor: 11}, 12, 12, false},
		{CLI{Major: 1, Minor: 14}, 14, 0, true},
		{CLI{Major: 2, Minor: 0}, 14, 0, true},
		{CLI{Major: 0, Minor: 15}, 14, 0, false},
		{CLI{Major: 1, Minor: 10, OpenTofu: true}, 10, 11, false},
		{CLI{Major: 1, Minor: 14, OpenTofu: true}, 14, 0, false},
		{CLI{Major: 1, Minor: 12, OpenTofu: true}, 12, 12, true},
	} {
		if err := test.cli.has(test.terraform, test.openTofu); (err == nil) != test.has {
			t.Errorf("%+v with %d, %d: %v", test.cli, test.terraform, test.openTofu, err)
		}
	}
}
