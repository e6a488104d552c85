package faults_test

import "context"

// jobFaults are jobs that are at work while something else happens.
func jobFaults() []fault {
	return []fault{
		{
			// Nothing is, or it is healed already; a replay of rows that are there
			// would store them again, as it is meant to.
			name: "replay of what is missing", fits: everywhere, on: []string{"job"},
			inject: func(ctx context.Context, s *stage) error {
				return s.verb(ctx, 0, "replay", "--missing", "--yes", "--no-wait", "--nats", s.now().NATSURL)
			},
		},
		{
			name: "requeue of all dead letters", fits: everywhere, on: []string{"job"},
			inject: func(ctx context.Context, s *stage) error {
				// 1: there was none.
				return s.verb(ctx, 1, "deadletters", "requeue", "--all", "--yes", "--no-wait", "--why", "a drill")
			},
		},
	}
}

func promotionFaults() []fault {
	return []fault{
		{name: "standby promoted", loses: true, fits: []kind{synced, plain}, on: []string{"database", "slot", "standby wire"}, last: true, inject: promote},
	}
}

// promote kills the primary and makes the standby one.
func promote(ctx context.Context, s *stage) error {
	if s.kind == synced {
		if err := s.awaitCopy(ctx); err != nil {
			return err
		}
	}
	if err := s.primary.Kill(ctx); err != nil {
		return err
	}
	if err := s.between.Cut(); err != nil {
		return err
	}
	if err := s.standby.Promote(ctx); err != nil {
		return err
	}
	s.moveOn()
	return nil
}
