package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/rest"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// apiServer is a configured server that does not serve yet.
type apiServer struct {
	chain *aggregator.APIAggregator
}

// newAPIServer does what the kube-apiserver command does with its flags, except that the kernel
// chose the port: the server takes over `listener`.
func newAPIServer(
	dir, token, etcd string, listener net.Listener, controlled, gangs bool,
) (*apiServer, error) {
	flags, err := writeKeys(dir, token)
	if err != nil {
		return nil, err
	}
	flags = append(flags,
		"--etcd-servers=http://"+etcd,
		"--bind-address="+listener.Addr().(*net.TCPAddr).IP.String(),
		"--cert-dir="+dir,
		// Nobody connects to this address; without one the server looks for a network.
		"--advertise-address=192.0.2.1",
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=RBAC",
		"--anonymous-auth=false",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--enable-priority-and-fairness=false",
		"--profiling=false",
	)
	// Without a controller no namespace ever gets the account that this plug-in asks for.
	disabled := "ServiceAccount"
	if controlled {
		// New nodes would have a taint until the controller that watches their health takes it away.
		disabled = "TaintNodesByCondition"
		flags = append(flags,
			// Webhooks are reached at the pods of their Services, where no proxy makes a Service's
			// address work.
			"--enable-aggregator-routing=true",
			// Pods of a lost node are given up soon.
			"--default-not-ready-toleration-seconds=1",
			"--default-unreachable-toleration-seconds=1",
		)
	}
	flags = append(flags, "--disable-admission-plugins="+disabled)
	if gangs {
		// The scheduler of this process has the same gates.
		flags = append(flags, "--feature-gates=GenericWorkload=true,GangScheduling=true",
			"--runtime-config=scheduling.k8s.io/v1alpha2=true")
	}
	run := options.NewServerRunOptions()
	set := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	for _, named := range run.Flags().FlagSets {
		set.AddFlagSet(named)
	}
	if err := set.Parse(flags); err != nil {
		return nil, err
	}
	run.SecureServing.Listener = listener
	run.SecureServing.BindPort = listener.Addr().(*net.TCPAddr).Port
	return complete(run)
}

func complete(run *options.ServerRunOptions) (*apiServer, error) {
	if err := run.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return nil, err
	}
	// The server's client of itself need not warn itself.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	completed, err := run.Complete(context.Background())
	if err != nil {
		return nil, err
	}
	if errs := completed.Validate(); len(errs) != 0 {
		return nil, utilerrors.NewAggregate(errs)
	}
	config, err := app.NewConfig(completed)
	if err != nil {
		return nil, err
	}
	ready, err := config.Complete()
	if err != nil {
		return nil, err
	}
	chain, err := app.CreateServerChain(ready)
	if err != nil {
		return nil, err
	}
	return &apiServer{chain}, nil
}

// Run serves until the context ends.
func (s *apiServer) Run(ctx context.Context) error {
	prepared, err := s.chain.PrepareRun()
	if err != nil {
		return err
	}
	return prepared.Run(ctx)
}

// writeKeys makes the administrator's token and the key that signs service account tokens. The
// key is kept over a restart, so that tokens stay valid.
func writeKeys(dir, token string) ([]string, error) {
	tokens, key := filepath.Join(dir, "tokens.csv"), filepath.Join(dir, "accounts.key")
	line := token + `,admin,admin,"system:masters"` + "\n"
	if err := os.WriteFile(tokens, []byte(line), 0o600); err != nil {
		return nil, err
	}
	if _, err := os.Stat(key); errors.Is(err, fs.ErrNotExist) {
		if err := writeAccountKey(key); err != nil {
			return nil, err
		}
	}
	return []string{
		"--token-auth-file=" + tokens,
		"--service-account-key-file=" + key,
		"--service-account-signing-key-file=" + key,
	}, nil
}

func writeAccountKey(path string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	block := pem.Block{Type: "EC PRIVATE KEY", Bytes: der}
	return os.WriteFile(path, pem.EncodeToMemory(&block), 0o600)
}

// waitReady asks the server whether it is ready until it is.
func waitReady(ctx context.Context, url, dir, token string) error {
	roots := x509.NewCertPool()
	pemBytes, err := os.ReadFile(filepath.Join(dir, "apiserver.crt"))
	if err != nil {
		return err
	}
	roots.AppendCertsFromPEM(pemBytes)
	client := http.Client{
		Timeout:   startTimeout,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}},
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(request)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the API server did not become ready: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
