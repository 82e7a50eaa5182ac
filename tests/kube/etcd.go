package main

import (
	"errors"
	"net/url"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// startTimeout bounds how long etcd and the API server may take; only a broken one needs it.
const startTimeout = 2 * time.Minute

// startEtcd starts a one-member etcd on free loopback ports and waits until it serves.
func startEtcd(dir string) (*embed.Etcd, error) {
	loopback := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config := embed.NewConfig()
	config.Dir = filepath.Join(dir, "etcd")
	config.ListenClientUrls, config.AdvertiseClientUrls = loopback, loopback
	config.ListenPeerUrls, config.AdvertisePeerUrls = loopback, loopback
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.LogLevel = "error"
	config.EnableGRPCGateway = false
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
		return store, nil
	case <-time.After(startTimeout):
		store.Close()
		return nil, errors.New("etcd did not become ready")
	}
}
