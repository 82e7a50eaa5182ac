package main

import (
	"context"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/scale"
	"k8s.io/kubernetes/pkg/controller/podautoscaler"
	"k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"
	resource "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"
	"k8s.io/metrics/pkg/client/custom_metrics"
	"k8s.io/metrics/pkg/client/external_metrics"
)

// tolerance is the share by which a metric may miss its target before anything is scaled, as
// kube-controller-manager has it.
const tolerance = 0.1

// scales is a client of the scale subresource of whatever kind.
func (c *controllers) scales() (scale.ScalesGetter, error) {
	kinds := scale.NewDiscoveryScaleKindResolver(c.client.Discovery())
	return scale.NewForConfig(c.config, c.mapper, dynamic.LegacyAPIPathResolverFunc, kinds)
}

// addAutoscaling adds horizontal autoscaling. It looks each second and waits for nothing, so that
// tests need not.
func (c *controllers) addAutoscaling(ctx context.Context) error {
	scales, err := c.scales()
	if err != nil {
		return err
	}
	usage, err := resource.NewForConfig(c.config)
	if err != nil {
		return err
	}
	external, err := external_metrics.NewForConfig(c.config)
	if err != nil {
		return err
	}
	versions := custom_metrics.NewAvailableAPIsGetter(c.client.Discovery())
	custom := custom_metrics.NewForConfig(c.config, c.mapper, versions)
	scaler := podautoscaler.NewHorizontalController(ctx, c.client.CoreV1(), scales,
		c.client.AutoscalingV2(), c.mapper, metrics.NewRESTMetricsClient(usage, custom, external),
		c.informers.Autoscaling().V2().HorizontalPodAutoscalers(), c.informers.Core().V1().Pods(),
		time.Second, 0, tolerance, 0, 0)
	c.add(scaler.Run)
	c.every(versions.Invalidate)
	return nil
}
