package admin

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// listenAgain is how often an address that cannot be had is tried again.
const listenAgain = 2 * time.Second

// Serve answers where and whom access says until ctx ends, then hangs up. An
// address that cannot be had is no reason to stop delivering: it is logged once
// and tried again.
func Serve(ctx context.Context, access Access, handler http.Handler, log *slog.Logger) {
	handler = access.guard(handler, log)
	tick := time.NewTicker(listenAgain)
	defer tick.Stop()
	told := false
	for {
		var config net.ListenConfig
		listener, err := config.Listen(ctx, "tcp", access.Addr)
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = listener.Close() // nobody has used it
			}
			return
		case err == nil:
			log.InfoContext(ctx, "status and metrics are served", slog.String("admin", listener.Addr().String()))
			told = false
			err = serve(ctx, access.listen(listener), handler, log)
			if ctx.Err() != nil {
				return
			}
		}
		if !told {
			log.WarnContext(ctx, "status and metrics cannot be served on this address; trying again, delivery goes on",
				slog.String("admin", access.Addr), slog.String("err", err.Error()))
			told = true
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func serve(ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if err := server.Shutdown(leave); err != nil {
			_ = server.Close() // the listener is closed already
		}
	}()
	err := server.Serve(listener)
	if errors.Is(err, http.ErrServerClosed) {
		<-ended
	}
	return err
}
