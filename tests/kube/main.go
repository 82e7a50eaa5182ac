// Command kube is a Kubernetes API server with its etcd in one process: the cluster that the
// end-to-end tests talk to. It has no kubelet and no controllers; the tests play those parts.
//
// With -controllers it has the controllers of deployments and what belongs to them, and the
// scheduler, so that pods come and go by themselves where a kubelet runs them. With -gangs it has
// groups of pods that the scheduler binds together or not at all.
//
// With -etcd it is etcd alone. Under the name kubectl it is kubectl.
//
// It prints one line, the server's URL, once the server is ready. It ends, and removes its
// directory, when its standard input is closed, so that it never outlives the tests. A signal
// ends it too, but leaves the directory for the next start.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
)

func main() {
	if filepath.Base(os.Args[0]) == "kubectl" {
		runKubectl()
		return
	}
	dir := flag.String("dir", "", "directory for keys and data; created where it is missing")
	token := flag.String("token", "", "bearer token of an administrator")
	host := flag.String("host", "127.0.0.1", "address of the API server, one of this machine")
	port := flag.Int("port", 0, "port of the API server, or 0 for any free one")
	controlled := flag.Bool("controllers", false, "run controllers and the scheduler")
	gangs := flag.Bool("gangs", false, "serve groups of pods that are bound together")
	alone := flag.Bool("etcd", false, "run etcd alone, at that port")
	options := etcdOptions{}
	flag.StringVar(&options.password, "etcd-password", "", "password that etcd's user root needs")
	flag.StringVar(&options.cert, "etcd-cert", "", "certificate of etcd, which then speaks TLS")
	flag.StringVar(&options.key, "etcd-key", "", "key of that certificate")
	flag.StringVar(&options.ca, "etcd-ca", "", "authority of the certificates that etcd then asks for")
	flag.Parse()
	var err error
	if *alone {
		err = runEtcd(*dir, *port, options)
	} else {
		err = run(*dir, *token, net.JoinHostPort(*host, strconv.Itoa(*port)), *controlled, *gangs)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// runEtcd serves etcd alone until a signal ends it.
func runEtcd(dir string, port int, options etcdOptions) error {
	ctx := genericapiserver.SetupSignalContext()
	if port != 0 {
		// After a restart it may have to become free.
		listener, err := listen(fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		listener.Close()
	}
	options.port = port
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	go endWithParent(dir)
	store, err := startEtcd(dir, options)
	if err != nil {
		return err
	}
	defer store.Close()
	fmt.Println(store.Config().ListenClientUrls[0].Scheme + "://" + store.Clients[0].Addr().String())
	<-ctx.Done()
	return nil
}

func run(dir, token, address string, controlled, gangs bool) error {
	ctx := genericapiserver.SetupSignalContext()
	listener, err := listen(address)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	go endWithParent(dir)
	store, err := startEtcd(dir, etcdOptions{})
	if err != nil {
		return err
	}
	defer store.Close()
	etcd := store.Clients[0].Addr().String()
	server, err := newAPIServer(dir, token, etcd, listener, controlled, gangs)
	if err != nil {
		return err
	}
	go func() {
		url := "https://" + listener.Addr().String()
		err := waitReady(ctx, url, dir, token)
		if err == nil && controlled {
			err = runControllers(ctx, url, dir, token)
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(url)
	}()
	return server.Run(ctx)
}

// listen takes an address. After a restart it may have to wait for a connection that the kernel gave
// the same port meanwhile.
func listen(address string) (listener net.Listener, err error) {
	for end := time.Now().Add(startTimeout); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		listener, err = net.Listen("tcp4", address)
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return listener, err
}

// endWithParent waits until the other end of standard input is closed.
func endWithParent(dir string) {
	// By then nobody reads what is logged, which must not end the process before it has tidied up.
	signal.Ignore(syscall.SIGPIPE)
	_, _ = io.Copy(io.Discard, os.Stdin)
	// Etcd may write a file into a directory that is just being emptied.
	for attempt := 0; attempt < 100 && os.RemoveAll(dir) != nil; attempt++ {
	}
	os.Exit(0)
}
