// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Endpoints is what a server saw of one connection or datagram.
type Endpoints struct{ Peer, Local netip.AddrPort }

// Server answers every line (TCP) or datagram (UDP) with one of the same
// length that states the addresses it saw, see Conn. It runs in this process
// with its sockets in the namespace.
type Server struct {
	addr  netip.AddrPort
	close func() error
	work  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	seen   []Endpoints
	conns  map[net.Conn]struct{}
}

// ServeTCP starts a TCP server. "[::]:80" listens on both families, port 0
// takes a free port.
func ServeTCP(ns *NetNS, at netip.AddrPort) (*Server, error) {
	var listener net.Listener
	err := ns.Do(func() (err error) {
		config := net.ListenConfig{}
		config.SetMultipathTCP(false)
		listener, err = config.Listen(context.Background(), listenNetwork("tcp", at), at.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("serve in namespace %s: %w", ns.name, err)
	}
	s := &Server{addr: addrPort(listener.Addr()), close: listener.Close, conns: map[net.Conn]struct{}{}}
	s.work.Go(func() { s.accept(listener) })
	return s, nil
}

// ListenTCP is ServeTCP for a test, which stops the server.
func ListenTCP(tb testing.TB, ns *NetNS, at netip.AddrPort) *Server {
	tb.Helper()
	return forTest(tb)(ServeTCP(ns, at))
}

func forTest(tb testing.TB) func(*Server, error) *Server {
	tb.Helper()
	return func(s *Server, err error) *Server {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() {
			if err := s.Close(); err != nil {
				tb.Error(err)
			}
		})
		return s
	}
}

// Addr is what the server listens on, with the port that it got.
func (s *Server) Addr() netip.AddrPort { return s.addr }

// At is the given address with the server's port.
func (s *Server) At(addr netip.Addr) netip.AddrPort {
	return netip.AddrPortFrom(addr, s.addr.Port())
}

// Peers lists the connections (TCP) or datagrams (UDP) seen so far, in order.
func (s *Server) Peers() []Endpoints {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// Close stops the server and ends its connections.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	err := s.close()
	for conn := range s.conns {
		err = errors.Join(err, conn.Close())
	}
	s.mu.Unlock()
	s.work.Wait()
	return err
}

func (s *Server) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && s.keep(conn) {
			s.work.Go(func() { s.serve(conn) })
		}
	}
}

// keep is false when the server was closed meanwhile.
func (s *Server) keep(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close() //nolint:errcheck // nothing was sent on it
		return false
	}
	s.conns[conn] = struct{}{}
	s.seen = append(s.seen, endpointsOf(conn))
	return true
}

func (s *Server) serve(conn net.Conn) {
	seen := endpointsOf(conn)
	lines := bufio.NewReader(conn)
	for {
		line, err := lines.ReadString('\n')
		if err == nil {
			_, err = conn.Write(seen.answer(line))
		}
		if err != nil {
			break // the client sees it too, and reports it
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, open := s.conns[conn]; open && !s.closed {
		delete(s.conns, conn)
		conn.Close() //nolint:errcheck // the client has closed or reset it
	}
}

func endpointsOf(conn net.Conn) Endpoints {
	return Endpoints{Peer: addrPort(conn.RemoteAddr()), Local: addrPort(conn.LocalAddr())}
}

// answer is what a server says to a request, as long as the request. It names
// the request, so that a client knows an answer that comes late.
func (e Endpoints) answer(request string) []byte {
	id, _, _ := strings.Cut(strings.TrimSpace(request), " ")
	return padded(fmt.Sprintf("peer=%s local=%s re=%s", e.Peer, e.Local, id), len(request))
}

// parseAnswer is false for the answer to another request.
func parseAnswer(text, id string) (seen Endpoints, mine bool, err error) {
	var peer, local, re string
	if _, err := fmt.Sscanf(text, "peer=%s local=%s re=%s", &peer, &local, &re); err != nil {
		return seen, false, fmt.Errorf("answer %.100q: %w", text, err)
	}
	if seen.Peer, err = netip.ParseAddrPort(peer); err != nil {
		return seen, false, err
	}
	seen.Local, err = netip.ParseAddrPort(local)
	return seen, re == id, err
}

// padded is a line of the given length, or longer if the text is.
func padded(text string, length int) []byte {
	return []byte(text + strings.Repeat(" ", max(0, length-len(text)-1)) + "\n")
}

// listenNetwork listens on both families for "[::]" only.
func listenNetwork(network string, at netip.AddrPort) string {
	switch {
	case at.Addr().Is4():
		return network + "4"
	case at.Addr().IsUnspecified():
		return network
	}
	return network + "6"
}

func addrPort(addr net.Addr) netip.AddrPort {
	var ap netip.AddrPort
	switch a := addr.(type) {
	case *net.TCPAddr:
		ap = a.AddrPort()
	case *net.UDPAddr:
		ap = a.AddrPort()
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
