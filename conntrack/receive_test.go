// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// script is a socket that answers what the test wrote, one datagram at a time.
type script struct {
	answers []any // netlink.Message or error
}

func (s *script) Close() error                         { return nil }
func (s *script) SetDeadline(time.Time) error          { return nil }
func (s *script) SetReadDeadline(time.Time) error      { return nil }
func (s *script) SetWriteDeadline(time.Time) error     { return nil }
func (s *script) Send(netlink.Message) error           { return nil }
func (s *script) SendMessages([]netlink.Message) error { return nil }

func (s *script) Receive() ([]netlink.Message, error) { panic("not used") }

func (s *script) ReceiveIter() iter.Seq2[netlink.Message, error] {
	return func(yield func(netlink.Message, error) bool) {
		if len(s.answers) == 0 {
			yield(netlink.Message{}, errors.New("asked too often"))
			return
		}
		next := s.answers[0]
		s.answers = s.answers[1:]
		if err, ok := next.(error); ok {
			yield(netlink.Message{}, err)
			return
		}
		yield(next.(netlink.Message), nil)
	}
}

func answerOf(t *testing.T, flags netlink.HeaderFlags) netlink.Message {
	t.Helper()
	m, err := createRequest(crowd(IPv4, 1)[0], flowTimeout)
	require.NoError(t, err)
	m.Header.Flags = netlink.Multi | flags
	return m
}

func TestBrokenDumps(t *testing.T) {
	t.Parallel()
	flow, dead := answerOf(t, 0), errors.New("socket died")
	done := netlink.Message{Header: netlink.Header{Type: netlink.Done, Flags: netlink.Multi}}
	failed := done
	failed.Data = []byte{0xfc, 0xff, 0xff, 0xff} // -EINTR
	garbage := flow
	garbage.Data = flow.Data[:4]
	foreign := flow
	foreign.Header.Type = 0x0101
	for _, row := range []struct {
		name    string
		answers []any
		want    error
		seen    int
	}{
		{"complete", []any{flow, flow, done}, nil, 2},
		{"empty", []any{done}, nil, 0},
		{"flag", []any{flow, answerOf(t, netlink.DumpInterrupted), flow, done}, ErrInterrupted, 3},
		{"errno at the end", []any{flow, failed}, ErrInterrupted, 1},
		{"overrun", []any{flow, unix.ENOBUFS}, ErrInterrupted, 1},
		{"dead socket", []any{flow, dead}, dead, 1},
		{"one message that is no flow", []any{flow, garbage, flow, done}, errNotAFlow, 2},
		{"message of another kind", []any{foreign, flow, done}, errNotAFlow, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			seen := 0
			conn := netlink.NewConn(&script{row.answers}, 1)
			err := receiveFlows(conn, netlink.Message{}, nil, func(Flow) { seen++ })
			if row.want == nil {
				require.NoError(t, err)
			}
			require.ErrorIs(t, err, row.want)
			require.Equal(t, row.seen, seen)
		})
	}
}

// A socket that dies in the middle of a batch: what was answered counts, and
// nothing else does.
func TestDeletionOnDeadSocket(t *testing.T) {
	t.Parallel()
	ack := netlink.Message{Header: netlink.Header{Type: netlink.Error}, Data: make([]byte, 20)}
	gone := ack
	gone.Header.Sequence = 2
	gone.Data = append([]byte{0xfe, 0xff, 0xff, 0xff}, make([]byte, 16)...) // -ENOENT
	denied := ack
	denied.Header.Sequence = 3
	denied.Data = append([]byte{0xff, 0xff, 0xff, 0xff}, make([]byte, 16)...) // -EPERM
	var d deletion
	err := d.run(netlink.NewConn(&script{[]any{ack, gone, denied, unix.ENOBUFS}}, 1), crowd(IPv4, 5))
	require.ErrorIs(t, err, unix.ENOBUFS)
	require.Equal(t, Result{Deleted: 1, Gone: 1, Failed: 1}, d.Result)
	require.ErrorIs(t, d.err(), unix.EPERM)
	d.lose(5)
	require.Equal(t, Result{Deleted: 1, Gone: 1, Failed: 3}, d.Result)
}

// Whatever comes and goes during a dump, what stays is in it.
func TestDumpWhileFlowsChange(t *testing.T) {
	t.Parallel()
	n := openKernel(t)
	fill(t, n, crowd(IPv4, 5000))
	ctx, cancel := context.WithCancel(t.Context())
	var churn sync.WaitGroup
	churn.Go(func() {
		for ctx.Err() == nil {
			for i := range byte(8) {
				if err := n.create(ctx, probeFlow(IPv4, i), flowTimeout); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
			for i := range byte(8) {
				if err := n.forget(ctx, probeFlow(IPv4, i)); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		}
	})
	for range 20 {
		seen := make(map[Tuple]bool)
		require.NoError(t, dump(t.Context(), n, Query{}, func() {}, func(f Flow) {
			if f.Zone == 0 {
				seen[f.Orig] = true
			}
		}))
		require.Len(t, seen, 5000)
	}
	cancel()
	churn.Wait()
}
