package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"golang.org/x/sync/errgroup"
)

const (
	chairCents = 4900
	lampCents  = 1999
)

// A client places orders.
type client struct {
	url  string
	http *http.Client
}

// placeAll places thirty orders, chairs and lamps in turn, each by two requests
// side by side. One of the two creates it.
func (c client) placeAll(ctx context.Context) error {
	var orders errgroup.Group
	for i := range 30 {
		id := strconv.Itoa(1000 + i)
		order := Order{Customer: []string{"ann", "bob", "eve"}[i%3], SKU: "chair", Cents: chairCents}
		if i%2 == 1 {
			order.SKU, order.Cents = "lamp", lampCents
		}
		orders.Go(func() error {
			var statuses [2]int
			var requests errgroup.Group
			for n := range statuses {
				requests.Go(func() (err error) {
					statuses[n], err = c.put(ctx, id, order)
					return err
				})
			}
			if err := requests.Wait(); err != nil {
				return err
			}
			if statuses[0]+statuses[1] != http.StatusCreated+http.StatusOK {
				return fmt.Errorf("order %s: statuses %v, want 201 and 200", id, statuses)
			}
			return nil
		})
	}
	return orders.Wait()
}

// mistakes sends what is to be refused.
func (c client) mistakes(ctx context.Context) error {
	for _, m := range []struct {
		id    string
		order Order
		want  int
	}{
		{"1000", Order{Customer: "ann", SKU: "chair", Cents: 1}, http.StatusConflict},
		{"1", Order{Customer: "ann", SKU: "chair"}, http.StatusBadRequest},
		{"", Order{Customer: "ann", SKU: "chair", Cents: 1}, http.StatusBadRequest},
	} {
		got, err := c.put(ctx, m.id, m.order)
		if err != nil {
			return err
		}
		if got != m.want {
			return fmt.Errorf("order %q: status %d, want %d", m.id, got, m.want)
		}
	}
	return nil
}

func (c client) put(ctx context.Context, id string, order Order) (status int, err error) {
	body, err := json.Marshal(order)
	if err != nil {
		return 0, fmt.Errorf("write order %q: %w", id, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, c.url+"/orders/"+id, bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("make the request of order %q: %w", id, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, fmt.Errorf("place order %q: %w", id, err)
	}
	return resp.StatusCode, resp.Body.Close()
}
