package sandboxcore_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
)

// TestNoStepTellsASecret: a backend may quote what it was given. Whatever step of the engine fails, and at whichever call,
// neither its error nor the audit log has a secret in it, and the code of the error is kept.
func TestNoStepTellsASecret(t *testing.T) {
	t.Parallel()
	const secret = "canary-0123456789" // the bench's
	principal := sandboxcore.DefaultPrincipal()
	steps := map[string]func(ctx context.Context, b *bench, info sandboxcore.SandboxInfo) error{
		"create": func(ctx context.Context, b *bench, _ sandboxcore.SandboxInfo) error {
			req := b.sandbox()
			req.Packages, req.Paused = []string{"rich"}, true
			_, err := b.engine.CreateSandbox(ctx, req, func(sandboxcore.SandboxInfo) {})
			return err
		},
		"read": func(ctx context.Context, b *bench, info sandboxcore.SandboxInfo) error {
			_, err := b.engine.ReadSandbox(ctx, sandboxcore.SandboxRef{Backend: "docker", NativeID: info.NativeID})
			return err
		},
		"live": func(ctx context.Context, b *bench, info sandboxcore.SandboxInfo) error {
			_, err := b.engine.LiveSpec(ctx, "docker", info)
			return err
		},
		"update": func(ctx context.Context, b *bench, info sandboxcore.SandboxInfo) error {
			paused := true
			_, err := b.engine.UpdateSandbox(ctx, sandboxcore.SandboxRef{Backend: "docker", NativeID: info.NativeID},
				sandboxcore.SandboxUpdate{Spec: b.spec, Name: "sb", Paused: &paused, Principal: principal})
			return err
		},
		"destroy": func(ctx context.Context, b *bench, info sandboxcore.SandboxInfo) error {
			return b.engine.DestroySandbox(ctx, sandboxcore.SandboxRef{Backend: "docker", NativeID: info.NativeID})
		},
		"list": func(ctx context.Context, b *bench, _ sandboxcore.SandboxInfo) error {
			_, err := b.engine.ListSandboxes(ctx, "docker")
			return err
		},
		"admit": func(ctx context.Context, b *bench, _ sandboxcore.SandboxInfo) error {
			p, err := b.engine.Registry().ParseSpec(b.spec)
			if err != nil {
				return err
			}
			return b.engine.Admit(ctx, p, sandboxcore.Operation{Name: sandboxcore.OpCreate}, false)
		},
		"probe": func(ctx context.Context, b *bench, _ sandboxcore.SandboxInfo) error {
			o, err := b.engine.Offers(ctx, "docker")
			if o.Reason != "" {
				return errors.New(o.Reason)
			}
			return err
		},
		"attach": func(ctx context.Context, b *bench, _ sandboxcore.SandboxInfo) error {
			b.fake.Caps = func(*sandboxcore.Profile) sandboxcore.Capabilities {
				caps := backendtest.DefaultCaps()
				caps.AttachesExternal = true
				return caps
			}
			b.fake.SetTarget("box", &backendtest.FakeTarget{})
			spec := mustSpec(t, mustResolve(t, b.engine.Registry(), dockerInput(func(in *sandboxcore.ProfileInput) {
				in.Environment = new("attached")
				in.Blocks["docker"]["attach_to"] = "box"
			})))
			_, err := b.engine.Attach(ctx, spec, principal)
			return err
		},
		"run": func(ctx context.Context, b *bench, info sandboxcore.SandboxInfo) error {
			req := b.run()
			req.Binding = b.binding(info)
			_, err := b.engine.Exec(ctx, req)
			return err
		},
		"file": func(ctx context.Context, b *bench, info sandboxcore.SandboxInfo) error {
			return b.engine.WriteFile(ctx, sandboxcore.FileRequest{Binding: *b.binding(info), Path: "f", Principal: principal})
		},
	}
	for name, step := range steps {
		for _, coded := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, coded %v", name, coded), func(t *testing.T) {
				t.Parallel()
				b := newBench(t, nil)
				info := b.create(t)
				failed := map[string]bool{}
				for { // each call that the step makes fails once
					at := ""
					b.fake.SetFail(func(_ context.Context, call string) error {
						if at != "" || failed[call] {
							return nil
						}
						at, failed[call] = call, true
						if coded {
							return &sandboxcore.Error{
								Code: sandboxcore.CodeUnreachable, Attempted: "it was tried", Object: "of " + secret, Said: "no " + secret, Next: "Not " + secret + ".",
								Err: errors.New("cause " + secret),
							}
						}
						return errors.New("refused with the header " + secret)
					})
					err := step(t.Context(), b, info)
					if at == "" {
						break
					}
					if err == nil {
						t.Fatalf("%s: no error", at)
					}
					if strings.Contains(err.Error(), secret) {
						t.Errorf("%s: the error tells it: %v", at, err)
					}
					if coded && name != "probe" && sandboxcore.CodeOf(err) == "" {
						t.Errorf("%s: the code is lost: %v", at, err)
					}
				}
				if len(failed) < 2 {
					t.Errorf("only %v failed", failed)
				}
				if strings.Contains(b.auditText(t), secret) {
					t.Error("the audit log tells it")
				}
			})
		}
	}
}

// TestRedactedErrorIsStillWhatItWas: what an error is does not get lost with what it says.
func TestRedactedErrorIsStillWhatItWas(t *testing.T) {
	t.Parallel()
	r := sandboxcore.NewRedactor("canary-0123456789")
	plain := &fs.PathError{Op: "read", Path: "/canary-0123456789", Err: fs.ErrNotExist}
	for name, err := range map[string]error{
		"plain": plain,
		"cause": &sandboxcore.Error{Code: sandboxcore.CodeValue, Attempted: "x", Err: plain},
	} {
		got := r.Error(err)
		if !errors.Is(got, fs.ErrNotExist) || strings.Contains(got.Error(), "canary") || !strings.Contains(got.Error(), "***") {
			t.Errorf("%s: %v", name, got)
		}
		if _, is := errors.AsType[*fs.PathError](got); is {
			t.Errorf("%s: the error with the text is still in the chain", name)
		}
	}
}
