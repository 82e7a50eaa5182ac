package main

import (
	"context"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/profile"
)

// newScheduler is kube-scheduler with its default profile; the result runs it.
func newScheduler(ctx context.Context, client kubernetes.Interface) (func(context.Context), error) {
	// Informers of its own, because its pods are stripped of what it does not read.
	informers := scheduler.NewInformerFactory(client, 0)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	recorders := profile.NewRecorderFactory(broadcaster)
	binder, err := scheduler.New(ctx, client, informers, nil, recorders,
		// A pod that finds no room is tried again without much ado.
		scheduler.WithPodInitialBackoffSeconds(1), scheduler.WithPodMaxBackoffSeconds(1))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) {
		broadcaster.StartRecordingToSink(ctx.Done())
		defer broadcaster.Shutdown()
		informers.Start(ctx.Done())
		informers.WaitForCacheSync(ctx.Done())
		if err := binder.WaitForHandlersSync(ctx); err != nil {
			return
		}
		binder.Run(ctx)
	}, nil
}

// klogger is the log of all parts.
func klogger() klog.Logger {
	return klog.Background()
}
