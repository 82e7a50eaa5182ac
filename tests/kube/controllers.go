package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/kubernetes/pkg/controller/disruption"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/replicaset"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/controller/statefulset"
)

const (
	// workers is how many objects each controller works on at once.
	workers = 4
	// lookAgain is how soon definitions that a test installs are noticed.
	lookAgain = time.Second
	// endpointsMax is the limit of one EndpointSlice, as kube-controller-manager has it.
	endpointsMax = 100
)

// controllers is what the parts of kube-controller-manager share.
type controllers struct {
	config    *rest.Config
	client    *kubernetes.Clientset
	informers informers.SharedInformerFactory
	mapper    *restmapper.DeferredDiscoveryRESTMapper
	// started is closed once the informers run.
	started chan struct{}
	// loops run until the context ends.
	loops []func(context.Context)
}

// runControllers starts the controllers that turn objects into pods and pods into endpoints, and
// the scheduler, as an administrator of the server at `url`.
func runControllers(ctx context.Context, url, dir, token string) error {
	authority, err := os.ReadFile(filepath.Join(dir, "apiserver.crt"))
	if err != nil {
		return err
	}
	all, err := newControllers(ctx, &rest.Config{
		Host:            url,
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{CAData: authority},
		// A cluster of one test is not to be protected from its own controllers.
		QPS: -1,
	})
	if err != nil {
		return err
	}
	parts := []func(context.Context) error{
		all.addWorkloads, all.addGarbageCollector, all.addAutoscaling, all.addNodes,
		func(context.Context) error { return all.addAccounts(authority) },
	}
	for _, add := range parts {
		if err := add(ctx); err != nil {
			return err
		}
	}
	schedule, err := newScheduler(ctx, all.client)
	if err != nil {
		return fmt.Errorf("scheduler: %w", err)
	}
	all.loops = append(all.loops, schedule)
	all.informers.Start(ctx.Done())
	close(all.started)
	for _, loop := range all.loops {
		go loop(ctx)
	}
	return nil
}

func newControllers(ctx context.Context, config *rest.Config) (*controllers, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	all := &controllers{
		config:    config,
		client:    client,
		informers: informers.NewSharedInformerFactory(client, 0),
		mapper:    mapper,
		started:   make(chan struct{}),
	}
	all.every(mapper.Reset)
	return all, nil
}

// every adds a loop that does something at each look.
func (c *controllers) every(do func()) {
	c.loops = append(c.loops, func(ctx context.Context) {
		for ticks := time.Tick(lookAgain); ; {
			select {
			case <-ctx.Done():
				return
			case <-ticks:
				do()
			}
		}
	})
}

// add adds a controller that wants to know how many workers it has.
func (c *controllers) add(run func(context.Context, int)) {
	c.loops = append(c.loops, func(ctx context.Context) { run(ctx, workers) })
}

// addWorkloads adds deployments, their replica sets, stateful sets, disruption budgets and endpoints
// of services.
func (c *controllers) addWorkloads(ctx context.Context) error {
	apps, core := c.informers.Apps().V1(), c.informers.Core().V1()
	deployments, err := deployment.NewDeploymentController(
		ctx, apps.Deployments(), apps.ReplicaSets(), core.Pods(), c.client)
	if err != nil {
		return err
	}
	c.add(deployments.Run)
	sets := replicaset.NewReplicaSetController(
		ctx, apps.ReplicaSets(), core.Pods(), c.client, replicaset.BurstReplicas)
	c.add(sets.Run)
	stateful := statefulset.NewStatefulSetController(ctx, core.Pods(), apps.StatefulSets(),
		core.PersistentVolumeClaims(), apps.ControllerRevisions(), c.client)
	c.add(stateful.Run)
	slices := endpointslice.NewController(ctx, core.Pods(), core.Services(), core.Nodes(),
		c.informers.Discovery().V1().EndpointSlices(), endpointsMax, c.client, 0)
	c.add(slices.Run)
	scales, err := c.scales()
	if err != nil {
		return err
	}
	budgets := disruption.NewDisruptionController(ctx, core.Pods(),
		c.informers.Policy().V1().PodDisruptionBudgets(), core.ReplicationControllers(),
		apps.ReplicaSets(), apps.Deployments(), apps.StatefulSets(), c.client, c.mapper, scales,
		c.client.Discovery())
	c.loops = append(c.loops, budgets.Run)
	return nil
}

// addAccounts adds what every namespace gets, the default account and the server's certificate, and
// what removes the objects of a namespace that is deleted.
func (c *controllers) addAccounts(authority []byte) error {
	core := c.informers.Core().V1()
	accounts, err := serviceaccount.NewServiceAccountsController(klogger(), core.ServiceAccounts(),
		core.Namespaces(), c.client, serviceaccount.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return err
	}
	c.add(accounts.Run)
	certificates, err := rootcacertpublisher.NewPublisher(
		core.ConfigMaps(), core.Namespaces(), c.client, authority)
	if err != nil {
		return err
	}
	c.add(certificates.Run)
	objects, err := metadata.NewForConfig(c.config)
	if err != nil {
		return err
	}
	namespaces := namespace.NewNamespaceController(context.Background(), c.client, objects,
		c.client.Discovery().ServerPreferredNamespacedResources, core.Namespaces(), 0,
		corev1.FinalizerKubernetes)
	c.add(namespaces.Run)
	return nil
}

// addGarbageCollector adds what deletes the objects whose owner is gone.
func (c *controllers) addGarbageCollector(ctx context.Context) error {
	objects, err := metadata.NewForConfig(c.config)
	if err != nil {
		return err
	}
	others := metadatainformer.NewSharedInformerFactory(objects, 0)
	collector, err := garbagecollector.NewGarbageCollector(ctx, c.client, objects, c.mapper,
		garbagecollector.DefaultIgnoredResources(),
		informerfactory.NewInformerFactory(c.informers, others), c.started)
	if err != nil {
		return err
	}
	c.loops = append(c.loops,
		func(ctx context.Context) { collector.Run(ctx, workers, startTimeout) },
		func(ctx context.Context) { collector.Sync(ctx, c.client.Discovery(), lookAgain) },
	)
	return nil
}
