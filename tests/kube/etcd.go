package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
)

// startTimeout bounds how long etcd and the API server may take; only a broken one needs it.
const startTimeout = 2 * time.Minute

// etcdOptions says how clients reach etcd; the zero value is a free port for anybody.
type etcdOptions struct {
	port          int
	password      string
	cert, key, ca string
}

// startEtcd starts a one-member etcd on loopback ports and waits until it serves.
func startEtcd(dir string, options etcdOptions) (*embed.Etcd, error) {
	loopback := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	clients := []url.URL{{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", options.port)}}
	config := embed.NewConfig()
	if options.cert != "" {
		clients[0].Scheme = "https"
		config.ClientTLSInfo.CertFile, config.ClientTLSInfo.KeyFile = options.cert, options.key
		config.ClientTLSInfo.TrustedCAFile = options.ca
		config.ClientTLSInfo.ClientCertAuth = options.ca != ""
	}
	config.Dir = filepath.Join(dir, "etcd")
	config.ListenClientUrls, config.AdvertiseClientUrls = clients, clients
	config.ListenPeerUrls, config.AdvertisePeerUrls = loopback, loopback
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.LogLevel = "error"
	// tests/compare/agent/leaves.py hears of ended leases there. It would dial port 0 too.
	config.EnableGRPCGateway = options.port != 0
	// What the tests write need not survive a power cut, and has to be quick.
	config.UnsafeNoFsync = true
	// A lone member has nobody to wait for before it elects itself.
	config.TickMs, config.ElectionMs = 10, 50
	store, err := embed.StartEtcd(config)
	if err != nil {
		return nil, err
	}
	select {
	case <-store.Server.ReadyNotify():
		if err := guard(store, options.password); err != nil {
			store.Close()
			return nil, err
		}
		return store, nil
	case <-time.After(startTimeout):
		store.Close()
		return nil, errors.New("etcd did not become ready")
	}
}

// guard lets only the user root with this password in, where there is one. What was guarded
// before a restart is still.
func guard(store *embed.Etcd, password string) error {
	if password == "" || store.Server.AuthStore().IsAuthEnabled() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	client := v3client.New(store.Server)
	defer client.Close()
	if _, err := client.RoleAdd(ctx, "root"); err != nil {
		return err
	}
	if _, err := client.UserAdd(ctx, "root", password); err != nil {
		return err
	}
	if _, err := client.UserGrantRole(ctx, "root", "root"); err != nil {
		return err
	}
	_, err := client.AuthEnable(ctx)
	return err
}
