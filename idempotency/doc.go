// Package idempotency makes calls that no transaction can hold happen at most
// once per fact: a payment, a mail, a request to somebody else's API.
//
// [Store.Do] writes the intent with a lease, makes the call, and stores its
// result:
//
//	store, err := idempotency.New(ctx, pool, idempotency.Config{})
//	result, err := store.Do(ctx, idempotency.Key("charge", orderID), idempotency.Options{
//		KeyHonouredFor: 24 * time.Hour, // the provider's promise
//	}, func(ctx context.Context, call idempotency.Call) ([]byte, error) {
//		return provider.Charge(ctx, call.Key, amount)
//	})
//
// A repeat returns the stored result and calls nobody. While one caller holds
// the lease, others get [ErrInProgress]. Leases are measured by the database's
// clock alone.
//
// # When the outcome is not known
//
// A process that dies, or a time-out, leaves open whether the call took effect.
// Nothing on this side can tell. Three things can, in this order:
//
//   - the provider honours keys ([Options.KeyHonouredFor]): the call is made
//     again with the same key, and the provider sees that it is the same one;
//   - the provider can be asked ([Options.Probe]);
//   - a person ([Store.Uncertain], [Store.Resolve]).
//
// With neither of the first two, Do returns [ErrUncertain] and never calls
// again by itself: at most once is what can be kept.
//
// For the same reason an error of the call says nothing about its effect,
// unless the callback says so: [NotDone] for one that certainly had none (the
// connection was refused), [Final] for one that is the answer (the card was
// declined) and is stored and repeated like a result.
//
// # Leases and fencing
//
// A lease that has run out is taken over, with a higher [Call.Token]; what the
// old holder brings later is rejected with [ErrLeaseLost]. The callback's
// context ends with the lease. A process that was paused may still send after
// that; a provider that takes a token and refuses lower ones keeps that out,
// and one that honours keys does not care.
//
// # Keys
//
// A key names the fact and never the attempt: receipt-mail:42, not a random
// number, not a time of sending. [Key] joins parts so that distinct parts never
// collide, [WebhookKey] names an inbound webhook by its content.
//
// # For HTTP
//
// [Middleware] does the same for requests with an Idempotency-Key header, and
// [CreateOrMatch] for resources whose id the client has chosen.
//
// The table is made by `walrelay migrate --consumer`.
package idempotency
