package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"
)

// A demoScene is a stretch of what the page shows.
type demoScene struct {
	says   string
	lasts  time.Duration
	orders float64 // a second, at most; they come in waves
	broken bool    // NATS is stopped meanwhile
}

func demoScenes() []demoScene {
	return []demoScene{
		{says: "orders are placed, in waves", lasts: time.Minute, orders: 120},
		{says: "nobody orders anything", lasts: 25 * time.Second},
		{says: "NATS is stopped while orders are placed; they wait in PostgreSQL", lasts: 30 * time.Second, orders: 60, broken: true},
	}
}

// page shows a relay on its status page until Ctrl-C, with calm and trouble in
// turn.
func (c *demoCmd) page(ctx context.Context, out io.Writer, w *world) error {
	s, err := w.shop(ctx, "shop")
	if err != nil {
		return err
	}
	defer s.close(context.WithoutCancel(ctx))
	addr, err := pageAddress(ctx)
	if err != nil {
		return err
	}
	relay, err := w.spawn(ctx, "relay", "run", "--database-url", s.url, "--nats", w.nats.URL(), "--source", s.name, "--admin", addr)
	if err != nil {
		return err
	}
	consumer, err := s.consumer(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "The status page: http://%s/\nIn a terminal:   walrelay status --watch --source %s --admin %s\nCtrl-C ends it.\n\n", addr, s.name, addr)
	for ctx.Err() == nil {
		for _, scene := range demoScenes() {
			fmt.Fprintf(out, "%s  %s\n", time.Now().Format(time.TimeOnly), scene.says)
			if err := w.play(ctx, s, scene); err != nil && ctx.Err() == nil {
				return errors.Join(err, relay.failed(), consumer.failed())
			}
		}
	}
	return nil
}

// play places orders as a scene says.
func (w *world) play(ctx context.Context, s *shop, scene demoScene) error {
	if scene.broken {
		if err := w.nats.Stop(ctx); err != nil {
			return err
		}
		defer w.nats.Start(context.WithoutCancel(ctx)) //nolint:errcheck // without it the next scene fails
	}
	const step = 20 * time.Millisecond
	tick := time.NewTicker(step)
	defer tick.Stop()
	began, owed, customer := time.Now(), 0.0, 0
	for time.Since(began) < scene.lasts {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		wave := 0.6 + 0.4*math.Sin(time.Since(began).Seconds()/6)
		for owed += scene.orders * wave * step.Seconds(); owed >= 1; owed-- {
			customer++
			if err := placeOrder(ctx, s.db, 1+customer%20); err != nil {
				return err
			}
		}
	}
	return nil
}

// pageAddress is the usual one, or another where a relay has that.
func pageAddress(ctx context.Context) (string, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:9640")
	if err != nil {
		listener, err = config.Listen(ctx, "tcp", "127.0.0.1:0")
	}
	if err != nil {
		return "", fmt.Errorf("find an address for the status page: %w", err)
	}
	return listener.Addr().String(), listener.Close()
}
