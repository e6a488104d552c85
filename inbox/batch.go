package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// errBatch says that a batch must be tried again in another way.
var errBatch = errors.New("an event of the batch failed")

// tryBatch applies events in one transaction. First without savepoints, which
// cost a round trip each and are wanted only where an event fails; then with
// them, so that one that fails does not take the others down. ok is false where
// the whole failed: then nobody is to blame, and each is to be tried alone.
func (s *session) tryBatch(ctx context.Context, entries []*entry) (results []result, ok bool) {
	s.c.alone.RLock()
	defer s.c.alone.RUnlock()
	results, err := s.c.together(ctx, entries, s.fence)
	if err == nil {
		return results, true
	}
	if !errors.Is(err, errBatch) {
		return nil, false
	}
	results, err = s.c.apart(ctx, entries, s.fence)
	return results, err == nil
}

// together applies all events or none.
func (c *Consumer) together(ctx context.Context, entries []*entry, f *fence) ([]result, error) {
	u, err := c.db.begin(ctx)
	if err != nil {
		return nil, err
	}
	done := false
	defer func() {
		if !done {
			giveUp(ctx, u)
		}
	}()
	fresh, err := c.receiveMany(ctx, u, entries, f)
	if err != nil {
		return nil, err
	}
	results := make([]result, len(entries))
	for i, e := range entries {
		if !fresh[e.ID] {
			results[i] = result{outcome: Duplicate}
			continue
		}
		delete(fresh, e.ID) // the same event once more in this batch is a duplicate
		h, err := c.handler(e.Message)
		if err != nil {
			return nil, errBatch
		}
		if err := c.run(ctx, u, h, e.Message); err != nil {
			return nil, fmt.Errorf("%w: %w", errBatch, err)
		}
		results[i] = result{outcome: Applied}
	}
	for _, e := range entries {
		if err := c.tidy(ctx, u, e); err != nil {
			return nil, err
		}
	}
	done = true
	if err := u.commit(ctx); err != nil {
		return nil, c.uncommitted(ctx, u, err).err
	}
	c.trouble.over(ctx)
	return results, nil
}

// receiveMany writes the receipts of a batch, and gives the ids that are new.
func (c *Consumer) receiveMany(ctx context.Context, u unit, entries []*entry, f *fence) (map[string]bool, error) {
	type place struct {
		ID       string `json:"id"`
		Stream   string `json:"stream"`
		Sequence uint64 `json:"sequence"`
	}
	places := make([]place, len(entries))
	for i, e := range entries {
		places[i] = place{e.ID, e.Stream, e.Sequence}
	}
	list, err := json.Marshal(places)
	if err != nil {
		return nil, fmt.Errorf("write ids as JSON: %w", err)
	}
	statement, args := c.sql.receiveMany, []any{c.cfg.Name, string(list)}
	if f != nil {
		statement, args = c.sql.receiveManyFenced, append(args, f.stream, c.cfg.durable(), f.session)
	}
	var holds int64
	var ids, server, setting string
	err = u.query(ctx, statement, args, func(scan func(...any) error) error { return scan(&holds, &ids, &server, &setting) })
	if err != nil {
		return nil, fmt.Errorf("write the receipts of a batch: %w", err)
	}
	if err := c.vouch(holds, server, f); err != nil {
		return nil, err
	}
	var fresh []string
	if err := json.Unmarshal([]byte(ids), &fresh); err != nil {
		return nil, fmt.Errorf("read ids from JSON: %w", err)
	}
	set := make(map[string]bool, len(fresh))
	for _, id := range fresh {
		set[id] = true
	}
	return set, nil
}

// apart applies each event under a savepoint of its own, receipt included, so
// that one that fails leaves neither. With an order to keep, what follows it in
// its aggregate is put off.
func (c *Consumer) apart(ctx context.Context, entries []*entry, f *fence) ([]result, error) {
	u, err := c.db.begin(ctx)
	if err != nil {
		return nil, err
	}
	done := false
	defer func() {
		if !done {
			giveUp(ctx, u)
		}
	}()
	results := make([]result, len(entries))
	failed := map[*lane]bool{}
	for i, e := range entries {
		if f != nil && failed[e.lane] {
			results[i] = result{deferred: true}
			continue
		}
		r, err := c.under(ctx, u, e, f)
		if err != nil {
			return nil, err
		}
		failed[e.lane] = r.err != nil
		results[i] = r
	}
	done = true
	if err := u.commit(ctx); err != nil {
		return nil, c.uncommitted(ctx, u, err).err
	}
	c.trouble.over(ctx)
	return results, nil
}

// under applies e under a savepoint. An error is one of the whole transaction.
func (c *Consumer) under(ctx context.Context, u unit, e *entry, f *fence) (result, error) {
	if _, err := u.exec(ctx, `SAVEPOINT walrelay_event`); err != nil {
		return result{}, err
	}
	h, unknown := c.handler(e.Message)
	if unknown != nil {
		return result{}, unknown // doAll sees to it that there is one
	}
	fresh, err := c.receive(ctx, u, e, f)
	if err != nil {
		return result{}, err
	}
	if fresh {
		err = c.run(ctx, u, h, e.Message)
	}
	if err == nil {
		err = c.tidy(ctx, u, e)
	}
	if err != nil {
		class := classify(ctx, err)
		if class != classHandler && class != classPermanent {
			return result{}, err
		}
		if _, err := u.exec(ctx, `ROLLBACK TO SAVEPOINT walrelay_event; RELEASE SAVEPOINT walrelay_event`); err != nil {
			return result{}, err
		}
		return result{err: err, class: class}, nil
	}
	if _, err := u.exec(ctx, `RELEASE SAVEPOINT walrelay_event`); err != nil {
		return result{}, err
	}
	if fresh {
		return result{outcome: Applied}, nil
	}
	return result{outcome: Duplicate}, nil
}
