package kubernetes

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// sentinel is how often a pod that is watched is looked at all the same: an event may get lost.
const sentinel = 3 * time.Second

// watchStart is how long a watch may take to begin: what comes without it comes a little later.
const watchStart = 5 * time.Second

// watcher waits for the next state of one pod: by a watch, which costs the API server nothing while nothing happens, or
// without the right to watch by looking again and again.
type watcher struct {
	e               *endpoint
	namespace, name string
	events          watch.Interface
	wait            time.Duration
	end             context.CancelFunc
}

func (e *endpoint) watchPod(ctx context.Context, namespace, name string) *watcher {
	w := &watcher{e: e, namespace: namespace, name: name, wait: e.timings.poll}
	ctx, w.end = context.WithCancel(ctx)
	late := time.AfterFunc(min(watchStart, e.timings.call), w.end)
	events, err := e.own.kube.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	late.Stop()
	if err == nil {
		w.events = events // of a watch that began too late: it ends at once
	}
	return w
}

func (w *watcher) stop() {
	w.end()
	if w.events != nil {
		w.events.Stop()
	}
}

// next gives the pod after something has happened to it, or after a while. ok is false when ctx ended first.
func (w *watcher) next(ctx context.Context) (pod *corev1.Pod, ok bool, err error) {
	for {
		limit := sentinel
		var events <-chan watch.Event
		if w.events != nil {
			events = w.events.ResultChan()
		} else {
			limit = w.wait
			w.wait = min(w.wait*3/2, 4*w.e.timings.poll)
		}
		t := time.NewTimer(limit)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, false, nil
		case event, open := <-events:
			t.Stop()
			if !open || event.Type == watch.Error {
				w.events.Stop()
				w.events = nil
				continue
			}
			if p, is := event.Object.(*corev1.Pod); is && event.Type != watch.Deleted {
				return p, true, nil
			}
		case <-t.C:
		}
		pod, err = w.e.getPod(ctx, w.namespace, w.name)
		if err != nil && ctx.Err() != nil {
			return nil, false, nil //nolint:nilerr // the end of the wait, not an answer
		}
		return pod, true, err
	}
}
