package sandboxcore

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Registry holds the factories of the backends that this provider knows.
type Registry struct {
	factories []Factory
	// models are backends without configuration, made once, for the questions that need none: the methods that are pure may
	// be asked by many at a time.
	mu     sync.Mutex
	models map[BackendType]Backend
}

// NewRegistry makes a registry. It panics on a type that is registered twice: a programming error.
func NewRegistry(factories ...Factory) *Registry {
	r := &Registry{factories: slices.Clone(factories), models: map[BackendType]Backend{}}
	slices.SortFunc(r.factories, func(a, b Factory) int { return strings.Compare(string(a.Type), string(b.Type)) })
	for i := 1; i < len(r.factories); i++ {
		if r.factories[i].Type == r.factories[i-1].Type {
			panic(fmt.Sprintf("backend %q is registered twice", r.factories[i].Type))
		}
	}
	return r
}

// Factories lists all factories by type.
func (r *Registry) Factories() []Factory { return slices.Clone(r.factories) }

// Types lists all types.
func (r *Registry) Types() []BackendType {
	out := make([]BackendType, len(r.factories))
	for i, f := range r.factories {
		out[i] = f.Type
	}
	return out
}

// Factory finds the factory of a type.
func (r *Registry) Factory(t BackendType) (Factory, bool) {
	for _, f := range r.factories {
		if f.Type == t {
			return f, true
		}
	}
	return Factory{}, false
}
