package inbox

import "fmt"

// Version gives the event's place in the order of its source as text of fixed
// length that compares like it, in Go and in SQL. It guards an effect that sets
// state, so that an event that comes late does not undo a newer one:
//
//	INSERT INTO price (sku, amount, version) VALUES ($1, $2, $3)
//	ON CONFLICT (sku) DO UPDATE SET amount = EXCLUDED.amount, version = EXCLUDED.version
//	WHERE price.version < EXCLUDED.version
//
// Such an effect is right also without a receipt, if it depends on nothing but
// this event; one that adds, counts or sends is not. Events of two sources do
// not compare. The version of an event whose position is not known, one that
// was read from the table, is empty: less than all others.
func (m *Message) Version() string {
	p := m.Position
	if p.IsZero() {
		return ""
	}
	return fmt.Sprintf("%08x%016x%016x", p.Epoch, uint64(p.Commit), p.Index)
}
