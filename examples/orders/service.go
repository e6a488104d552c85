package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walrelay/walrelay/idempotency"
	"github.com/walrelay/walrelay/outbox"
)

// An Order is what a client sends, and what the event says.
type Order struct {
	Customer string `json:"customer"`
	SKU      string `json:"sku"`
	Cents    int64  `json:"cents"`
}

// Events about an order.
var (
	placed   = outbox.Type[Order]("order", "order.placed")
	reserved = outbox.Type[Order]("order", "order.reserved")
	refused  = outbox.Type[Order]("order", "order.refused")
)

const maxBody = 64 << 10

// An orderService takes PUT /orders/{id}. The client chooses the id, so that a
// request that it sends again is the same order.
type orderService struct{ pool *pgxpool.Pool }

func (s orderService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, ok := strings.CutPrefix(r.URL.Path, "/orders/")
	if r.Method != http.MethodPut || !ok {
		http.NotFound(w, r)
		return
	}
	var order Order
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&order); err != nil || order.Customer == "" || order.Cents <= 0 {
		http.Error(w, "not an order", http.StatusBadRequest)
		return
	}
	ctx := outbox.WithCorrelation(r.Context(), "http-"+id)
	created := false
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) (err error) {
		created, err = idempotency.CreateOrMatch(ctx, tx, idempotency.Record{
			Table:  "orders",
			Key:    map[string]any{"id": id},
			Values: map[string]any{"customer": order.Customer, "sku": order.SKU, "cents": order.Cents},
		})
		if err != nil || !created {
			return err // a repeat: its event is in the outbox
		}
		return outbox.Append(ctx, tx, placed.New(id, order))
	})
	if _, other := errors.AsType[*idempotency.MismatchError](err); other {
		http.Error(w, "this id has another order", http.StatusConflict)
		return
	}
	if _, invalid := errors.AsType[*outbox.InvalidError](err); invalid {
		http.Error(w, "not an order", http.StatusBadRequest) // an empty id, for one
		return
	}
	switch {
	case err != nil:
		http.Error(w, "try again", http.StatusServiceUnavailable)
	case created:
		w.WriteHeader(http.StatusCreated)
	default:
		w.WriteHeader(http.StatusOK)
	}
}
