// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/nft"
	"github.com/natplane/natplane/node"
	"github.com/natplane/natplane/testenv"
)

const (
	// Flows of a shard: each of so many ports of the machine to each peer.
	shardPeers, shardPorts = 50, 1000
	// connectors connect at the same time.
	connectors = 8
)

func shardAddress() netip.Addr { return netip.MustParseAddr("203.0.113.200") }

func shardKey() nat.Key { return nat.Key{Namespace: "galactic-system", Name: "bench"} }

// benchShard names the node; without an address it waits for one.
func benchShard(addr string) *nat.EgressShard {
	return &nat.EgressShard{
		TypeMeta:   metav1.TypeMeta{APIVersion: "network.datumapis.com/v1alpha1", Kind: "EgressShard"},
		ObjectMeta: metav1.ObjectMeta{Namespace: shardKey().Namespace, Name: shardKey().Name, UID: "1"},
		Spec:       nat.EgressShardSpec{TargetRef: nat.EgressShardTarget{Kind: "Node", Name: nodeName}, ShardAddressIPv4: addr},
	}
}

func shardPolicy() nat.Config {
	c := policy()
	c.ShardCIDRs = nat.DefaultShardCIDRs()
	return c
}

// shardPath has our table with a shard and nothing else.
func shardPath() (*path, error) {
	p, err := translatedPath(1)
	if err != nil {
		return nil, err
	}
	p.name = "shard"
	objects := nat.NewObjects()
	objects.Shards[shardKey()] = benchShard(shardAddress().String())
	n, err := node.Open(node.Options{NetNS: p.topo.NodeA.NS.FD()})
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	engine := nat.NewEngine(shardPolicy(), nil)
	engine.Apply(objects, nat.Facts(n.Facts()))
	var result nft.Result
	result, err = p.table.Sync(engine.State())
	if err = errors.Join(err, n.Close(), errors.Join(result.Invalid...)); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func measureShard(ctx context.Context, s settings) ([]*table, error) {
	many, err := measureManyFlows(ctx)
	if err != nil {
		return nil, fmt.Errorf("many flows: %w", err)
	}
	rate, err := measureConnects(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("connections: %w", err)
	}
	claim, err := measureClaim(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("from address to packet: %w", err)
	}
	return []*table{many, rate, claim}, nil
}

// measureManyFlows opens flows to many peers and uses all of them again while all are open.
func measureManyFlows(ctx context.Context) (t *table, err error) {
	p, err := shardPath()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	c, err := newConversation(p.topo)
	if err != nil {
		return nil, err
	}
	defer c.close()
	opened, openErr := c.round()
	again, againErr := c.round()
	if err := errors.Join(openErr, againErr); err != nil {
		return nil, err
	}
	table, err := conntrack.Open(p.topo.NodeA.NS.FD())
	if err != nil {
		return nil, err
	}
	use, err := conntrack.Use(ctx, table, shardAddress())
	if err != nil {
		return nil, err
	}
	stats, err := table.KernelStats(ctx)
	if err != nil {
		return nil, err
	}
	t = newTable(fmt.Sprintf("UDP flows of one machine through one shard, %d to each of %d peers; every datagram is answered.", shardPorts, shardPeers),
		"flows at once", "opened in s", "used again in s", "different ports", "busiest peer", "insert failed")
	t.add(fmt.Sprint(use.Flows), short(opened.Seconds()), short(again.Seconds()), fmt.Sprint(use.Ports), fmt.Sprint(use.BusiestPorts), fmt.Sprint(stats.InsertFailed))
	return t, nil
}

// conversation is a socket for each port of the machine, and one peer that has many addresses.
type conversation struct {
	sockets []*net.UDPConn
	peers   []netip.AddrPort
}

func newConversation(topo *testenv.Topology) (*conversation, error) {
	c := &conversation{}
	for i := range shardPeers {
		addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})
		if err := topo.Ext.NS.AddAddr("lo", netip.PrefixFrom(addr, 32)); err != nil {
			return nil, err
		}
		route := testenv.Route{Dst: netip.PrefixFrom(addr, 32), Dev: topo.Ext.Name, Via: topo.Ext.Addr4()}
		if err := topo.Router.NS.SetRoute(route); err != nil {
			return nil, err
		}
		c.peers = append(c.peers, netip.AddrPortFrom(addr, probePort))
	}
	server, err := testenv.ServeUDP(topo.Ext.NS, netip.AddrPortFrom(netip.IPv6Unspecified(), probePort))
	if err != nil {
		return nil, err
	}
	_ = server // it ends with the namespace
	for range shardPorts {
		err := topo.Web.NS.Do(func() error {
			conn, err := net.ListenUDP("udp4", nil)
			c.sockets = append(c.sockets, conn)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *conversation) close() {
	for _, s := range c.sockets {
		_ = s.Close() // nothing more is expected of it
	}
}

// round has one exchange over each flow.
func (c *conversation) round() (time.Duration, error) {
	start := time.Now()
	var group sync.WaitGroup
	var failed atomic.Pointer[error]
	for w := range connectors {
		group.Go(func() {
			for i := w; i < len(c.sockets); i += connectors {
				if err := c.exchange(c.sockets[i]); err != nil {
					failed.Store(&err)
					return
				}
			}
		})
	}
	group.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return time.Since(start), nil
}

func (c *conversation) exchange(s *net.UDPConn) error {
	if err := s.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	buf := make([]byte, 512)
	for _, peer := range c.peers {
		if _, err := s.WriteToUDPAddrPort(make([]byte, 128), peer); err != nil {
			return err
		}
		if _, _, err := s.ReadFromUDPAddrPort(buf); err != nil {
			return err
		}
	}
	return nil
}

// measureConnects compares connections through a shard with those that are only tracked, round by round.
func measureConnects(ctx context.Context, s settings) (t *table, err error) {
	plain, err := foreignPath(ctx, "tracked", trackingOnly, true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, plain.close()) }()
	shard, err := shardPath()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, shard.close()) }()
	var rates [2][]float64
	for range s.rounds {
		for i, p := range []*path{plain, shard} {
			rate, err := p.connects(s.slice)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			rates[i] = append(rates[i], rate)
		}
	}
	t = newTable(fmt.Sprintf("TCP connections that a machine opens and resets, %d at a time: medians of %d interleaved slices of %v each.", connectors, s.rounds, s.slice),
		"tracked only, 1/s", "through a shard, 1/s", "shard : tracked")
	t.add(short(quartiles(rates[0]).median), short(quartiles(rates[1]).median), ratios(rates[1], rates[0]).String())
	return t, nil
}

// connects returns the number of connections for each second.
func (p *path) connects(slice time.Duration) (float64, error) {
	server, err := testenv.ServeTCP(p.topo.Ext.NS, netip.AddrPortFrom(netip.IPv6Unspecified(), 0))
	if err != nil {
		return 0, err
	}
	to := net.TCPAddrFromAddrPort(server.At(p.topo.Ext.Addr4()))
	var count atomic.Int64
	var group sync.WaitGroup
	errs := make(chan error, connectors)
	start := time.Now()
	for range connectors {
		group.Go(func() {
			errs <- p.topo.Web.NS.Do(func() error {
				for time.Since(start) < slice {
					conn, err := net.DialTCP("tcp4", nil, to)
					if err != nil {
						return err
					}
					count.Add(1)
					if err := errors.Join(conn.SetLinger(0), conn.Close()); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	group.Wait()
	took := time.Since(start)
	for range connectors {
		err = errors.Join(err, <-errs)
	}
	runtime.KeepAlive(server)
	return float64(count.Load()) / took.Seconds(), errors.Join(err, server.Close())
}
