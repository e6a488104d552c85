// Package retention deletes outbox rows that are old and proven to be stored.
//
// A row goes when it is older than the retention and the newest proven snapshot
// of the present epoch sees it, while no gap is open and no open dead letter is
// about it. Where a table has no xid column, created_at stands for it with a
// margin of an hour; a table without created_at keeps all its rows.
//
// What created_at says counts only between 1970 and now: an infinite time, one
// before Christ or one in the future is no age, and such a row stays.
package retention
