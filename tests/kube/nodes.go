package main

import (
	"context"
	"time"

	"k8s.io/kubernetes/pkg/controller/nodelifecycle"
	"k8s.io/kubernetes/pkg/controller/tainteviction"
)

const (
	// lostAfter is the silence after which a node counts as lost: long for a kubelet that speaks each
	// second on a busy machine, and shorter than a test waits.
	lostAfter = 15 * time.Second
	// evictionsPerSecond is how many nodes lose their pods in a second.
	evictionsPerSecond = 100
	// largeCluster is the number of nodes above which lost nodes are treated with more care.
	largeCluster = 50
	// unhealthyZone is the share of lost nodes above which evictions stop, as kube-controller-manager
	// has it.
	unhealthyZone = 0.55
)

// addNodes adds what notices lost nodes, and what takes their pods away.
func (c *controllers) addNodes(ctx context.Context) error {
	core := c.informers.Core().V1()
	health, err := nodelifecycle.NewNodeLifecycleController(ctx,
		c.informers.Coordination().V1().Leases(), core.Pods(), core.Nodes(),
		c.informers.Apps().V1().DaemonSets(), c.client, time.Second, lostAfter, lostAfter,
		evictionsPerSecond, evictionsPerSecond, largeCluster, unhealthyZone)
	if err != nil {
		return err
	}
	evictions, err := tainteviction.New(ctx, c.client, core.Pods(), core.Nodes(), "taint-eviction")
	if err != nil {
		return err
	}
	c.loops = append(c.loops, health.Run, evictions.Run)
	return nil
}
