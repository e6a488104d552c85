package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// tracingWithin bounds the export of the last spans at the end.
const tracingWithin = 5 * time.Second

// startTracing exports spans as the usual variables of OpenTelemetry say: with
// OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, by OTLP over
// HTTP. Without, the provider is nil. stop exports what is left.
func startTracing(ctx context.Context, log *slog.Logger) (provider trace.TracerProvider, stop func(), err error) {
	if !wantsTracing(os.Getenv) {
		return nil, func() {}, nil
	}
	protocol := firstOf(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"))
	if protocol != "" && protocol != "http/protobuf" {
		return nil, nil, &usageError{fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL=%q: spans are exported by http/protobuf alone; give the collector's endpoint for it, usually port 4318", protocol)}
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.WarnContext(ctx, "spans are not exported; delivery goes on", slog.String("err", maskText(err.Error())))
	}))
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, nil, &usageError{fmt.Errorf("export spans by OTLP: %s", maskText(err.Error()))}
	}
	about, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", "walrelay"), attribute.String("service.version", build().Version),
	), resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
	if err != nil {
		return nil, nil, &usageError{errors.Join(fmt.Errorf("describe this process for spans: %w", err), exporter.Shutdown(ctx))}
	}
	spans := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	return spans, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tracingWithin)
		defer cancel()
		if err := spans.Shutdown(ctx); err != nil {
			log.WarnContext(ctx, "the last spans are not exported", slog.String("err", maskText(err.Error())))
		}
	}, nil
}

// wantsTracing says whether the variables ask for spans.
func wantsTracing(get func(string) string) bool {
	exporter := get("OTEL_TRACES_EXPORTER")
	switch {
	case strings.EqualFold(get("OTEL_SDK_DISABLED"), "true"), exporter != "" && exporter != "otlp":
		return false
	}
	return exporter == "otlp" || get("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}
